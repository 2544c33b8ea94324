"""Small programs in StableHLO, and what numpy says about them."""

import numpy as np

# Embed, project, compare with the target: a gather (its gradient scatters), a dot,
# a reduction. 7 words, 5 features, batches of 4.
TRAIN = """
module {
  func.func @main(
      %embed: tensor<7x5xf32> {pcp.role = "param", pcp.name = "embed.weight",
                               pcp.init = "normal(0.5)"},
      %head: tensor<5x7xf32> {pcp.role = "param", pcp.name = "head.weight",
                              pcp.init = "ones"},
      %x: tensor<4xi64> {pcp.role = "data", pcp.name = "x"},
      %y: tensor<4xi64> {pcp.role = "data", pcp.name = "y"}) -> tensor<f32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %count = stablehlo.constant dense<28.0> : tensor<f32>
    %h = "stablehlo.gather"(%embed, %x) <{
        dimension_numbers = #stablehlo.gather<offset_dims = [1],
          collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
        slice_sizes = array<i64: 1, 5>}>
        : (tensor<7x5xf32>, tensor<4xi64>) -> tensor<4x5xf32>
    %z = stablehlo.dot_general %h, %head, contracting_dims = [1] x [0]
        : (tensor<4x5xf32>, tensor<5x7xf32>) -> tensor<4x7xf32>
    %t = stablehlo.convert %y : (tensor<4xi64>) -> tensor<4xf32>
    %b = stablehlo.broadcast_in_dim %t, dims = [0]
        : (tensor<4xf32>) -> tensor<4x7xf32>
    %d = stablehlo.subtract %z, %b : tensor<4x7xf32>
    %s = stablehlo.multiply %d, %d : tensor<4x7xf32>
    %sum = stablehlo.reduce(%s init: %zero) applies stablehlo.add
        across dimensions = [0, 1] : (tensor<4x7xf32>, tensor<f32>) -> tensor<f32>
    %loss = stablehlo.divide %sum, %count : tensor<f32>
    return %loss : tensor<f32>
  }
}
"""

# A product of two matrices: no loss, no parameters.
FORWARD = """
func.func @main(%x: tensor<4x8xf32>, %y: tensor<8x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
"""

# All integers of one width, in and out, with a call, a region and a negative number.
INTEGERS = """
func.func @main(%seed: tensor<i64>, %i: tensor<3xi64>)
    -> (tensor<i32>, tensor<3xi64>, tensor<i64>, tensor<i32>) {
  %c35 = stablehlo.constant dense<35> : tensor<i64>
  %high = stablehlo.shift_right_logical %seed, %c35 : tensor<i64>
  %h = stablehlo.convert %high : (tensor<i64>) -> tensor<i32>
  %l = stablehlo.convert %seed : (tensor<i64>) -> tensor<i32>
  %k = stablehlo.constant dense<[1, -2, 3]> : tensor<3xi64>
  %s = stablehlo.add %i, %k : tensor<3xi64>
  %least = stablehlo.constant dense<-9223372036854775808> : tensor<i64>
  %r = stablehlo.reduce(%s init: %least) applies stablehlo.maximum
      across dimensions = [0] : (tensor<3xi64>, tensor<i64>) -> tensor<i64>
  %t = call @other(%r, %i) : (tensor<i64>, tensor<3xi64>) -> tensor<i64>
  %u = stablehlo.subtract %t, %r : tensor<i64>
  return %h, %s, %u, %l : tensor<i32>, tensor<3xi64>, tensor<i64>, tensor<i32>
}
func.func private @other(%a: tensor<i64>, %i: tensor<3xi64>) -> tensor<i64> {
  %0 = stablehlo.negate %a : tensor<i64>
  return %0 : tensor<i64>
}
"""


def train_inputs(seed: int = 0) -> list[np.ndarray]:
    """Embedding, head, x, y for `TRAIN`."""
    random = np.random.default_rng(seed)
    return [
        random.normal(size=(7, 5)).astype(np.float32),
        random.normal(size=(5, 7)).astype(np.float32),
        np.array([0, 6, 3, 3], np.int64),
        np.array([1, 2, 0, 5], np.int64),
    ]


def train_loss_and_gradients(
    embed: np.ndarray, head: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """The loss of `TRAIN` and its gradients, in float64 and by hand."""
    embed, head = embed.astype(np.float64), head.astype(np.float64)
    hidden = embed[x]
    difference = hidden @ head - y[:, None]
    upstream = 2 * difference / difference.size
    embed_gradient = np.zeros_like(embed)
    np.add.at(embed_gradient, x, upstream @ head.T)
    return (difference**2).mean(), embed_gradient, hidden.T @ upstream


def tanh_sum(batch: int, width: int, out: int) -> str:
    """The sum of tanh(x w) over a batch."""
    made = f"tensor<{batch}x{out}xf32>"
    return f"""
func.func @main(%x: tensor<{batch}x{width}xf32> {{pcp.name = "x", pcp.role = "data"}},
    %w: tensor<{width}x{out}xf32> {{pcp.name = "w", pcp.role = "param"}})
    -> tensor<f32> {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<{batch}x{width}xf32>, tensor<{width}x{out}xf32>) -> {made}
  %1 = stablehlo.tanh %0 : {made}
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0, 1]
    : ({made}, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}}
"""


TANH_SUM = tanh_sum(8, 4, 6)
