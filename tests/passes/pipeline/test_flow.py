"""What is made again in each microbatch, and what is one value for all."""

import numpy as np
import pytest
from helpers.oracles.staged_gradients import Loss

BATCH, WIDTH = 8, 4
CUT = ', pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>'

#: Numbers of data alone, no example's own, that are laid along the batch: each
#: microbatch reads its part.
LAID_ALONG = """
  %s = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %t = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
  %w = stablehlo.reshape %t : (tensor<2x4xf32>) -> tensor<8xf32>"""

#: A sum over the batch that no example is in: places, times a parameter's sum.
OF_NO_DATA = """
  %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0, 1]
    : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  %t = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<8xf32>
  %count = stablehlo.iota dim = 0 : tensor<8xf32>
  %w = stablehlo.multiply %t, %count : tensor<8xf32>"""

#: A number that is no example's, of data: made where it is read, and behind the sum.
OF_A_NUMBER = """
  %one = stablehlo.constant dense<7.0> : tensor<f32>
  %n = stablehlo.subtract %one, %k : tensor<f32>
  %w = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<8xf32>"""
SCALED = """
  %m = stablehlo.multiply %l, %n : tensor<f32>
  return %m : tensor<f32>"""


def _text(made: str, *, cut: bool) -> str:
    """Examples in two layers, moved by %w, which `made` makes."""
    end = SCALED if made == OF_A_NUMBER else "\n  return %l : tensor<f32>"
    rows, square = f"tensor<{BATCH}x{WIDTH}xf32>", f"tensor<{WIDTH}x{WIDTH}xf32>"
    dims = "contracting_dims = [1] x [0]"
    types = f"({rows}, {square}) -> {rows}"
    return f"""
func.func @main(%x: {rows} {{pcp.name = "x", pcp.role = "data"{CUT if cut else ""}}},
    %k: tensor<f32> {{pcp.name = "k", pcp.role = "data"}},
    %a: {square} {{pcp.name = "a", pcp.role = "param"}},
    %b: {square} {{pcp.name = "b", pcp.role = "param"}}) -> tensor<f32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>{made}
  %v = stablehlo.broadcast_in_dim %w, dims = [0] : (tensor<8xf32>) -> {rows}
  %h = stablehlo.dot_general %x, %a, {dims} : {types}
  %g = stablehlo.add %h, %v : {rows}
  %y = stablehlo.dot_general %g, %b, {dims} : {types}
  %l = stablehlo.reduce(%y init: %z) applies stablehlo.add across dimensions = [0, 1]
    : ({rows}, tensor<f32>) -> tensor<f32>{end}
}}"""


@pytest.mark.parametrize("axes", [{"pp": 2}, {"pp": 2, "dp": 2}], ids=str)
@pytest.mark.parametrize(
    "made",
    [LAID_ALONG, OF_NO_DATA, OF_A_NUMBER],
    ids=["data", "no data", "a number"],
)
def test_each_microbatch_has_its_own_part(
    made: str, axes: dict[str, int], elsewhere
) -> None:
    random = np.random.default_rng(0)
    shapes = {("data", "x"): (BATCH, WIDTH), ("data", "k"): ()} | {
        ("param", name): (WIDTH, WIDTH) for name in "ab"
    }
    inputs = {
        key: np.asarray(random.integers(-1, 4, shape), np.float32)
        for key, shape in shapes.items()
    }
    text = _text(made, cut="dp" in axes)
    loss = Loss(text, inputs, axes, "microbatches=4 tied=true")
    elsewhere.submit(loss.check).result(60)
