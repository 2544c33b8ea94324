"""pcp-divide-late: the same gradients of attention, with less that is large."""

import numpy as np
from helpers.servers.interpreter import Interpreter

from pcp.compiler import catalog
from pcp.dialect.context import parse
from pcp.passes.core.rewriting import functions

HEADS, LENGTH, WIDTH = 3, 6, 4
SCORES, ROWS = f"{HEADS}x{LENGTH}x{LENGTH}xf64", f"{HEADS}x{LENGTH}xf64"
VALUES = f"{HEADS}x{LENGTH}x{WIDTH}xf64"
NUMBERS = "batching_dims = [0] x [0], contracting_dims"

#: Attention whose masked half is minus infinity, and a loss that is no sum.
PROGRAM = f"""
func.func @main(%q: tensor<{VALUES}>, %k: tensor<{VALUES}>, %v: tensor<{VALUES}>)
    -> tensor<f64> {{
  %low = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
  %lows = stablehlo.constant dense<0xFFF0000000000000> : tensor<{SCORES}>
  %zero = stablehlo.constant dense<0.0> : tensor<f64>
  %i = stablehlo.iota dim = 1 : tensor<{SCORES}>
  %j = stablehlo.iota dim = 2 : tensor<{SCORES}>
  %seen = stablehlo.compare GE, %i, %j
      : (tensor<{SCORES}>, tensor<{SCORES}>) -> tensor<{SCORES.replace("f64", "i1")}>
  %0 = stablehlo.dot_general %q, %k, {NUMBERS} = [2] x [2]
      : (tensor<{VALUES}>, tensor<{VALUES}>) -> tensor<{SCORES}>
  %x = stablehlo.select %seen, %0, %lows
      : tensor<{SCORES.replace("f64", "i1")}>, tensor<{SCORES}>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [2]
      : (tensor<{SCORES}>, tensor<f64>) -> tensor<{ROWS}>
  %M = stablehlo.broadcast_in_dim %m, dims = [0, 1]
      : (tensor<{ROWS}>) -> tensor<{SCORES}>
  %d = stablehlo.subtract %x, %M : tensor<{SCORES}>
  %e = stablehlo.exponential %d : tensor<{SCORES}>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2]
      : (tensor<{SCORES}>, tensor<f64>) -> tensor<{ROWS}>
  %S = stablehlo.broadcast_in_dim %s, dims = [0, 1]
      : (tensor<{ROWS}>) -> tensor<{SCORES}>
  %p = stablehlo.divide %e, %S : tensor<{SCORES}>
  %y = stablehlo.dot_general %p, %v, {NUMBERS} = [2] x [1]
      : (tensor<{SCORES}>, tensor<{VALUES}>) -> tensor<{VALUES}>
  %t = stablehlo.tanh %y : tensor<{VALUES}>
  %loss = stablehlo.reduce(%t init: %zero) applies stablehlo.add
      across dimensions = [0, 1, 2] : (tensor<{VALUES}>, tensor<f64>) -> tensor<f64>
  return %loss : tensor<f64>
}}
"""


def _gradients(*before: str, of: str = PROGRAM) -> str:
    """`@main` with its gradients, as text; `before` runs in front of the derivative."""
    module = parse(of)
    steps = [*before, "pcp-grad{func=main name=grad}", "pcp-simplify", "pcp-legalize"]
    catalog.pipeline(f"builtin.module({','.join(steps)})").run(module)
    for function in list(functions(module)):
        if function.attributes["sym_name"].value == "main":
            function.erase()
    return str(module).replace("@grad", "@main")


def _closed_form(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    """The loss and its gradients by hand."""
    scores = q @ k.swapaxes(1, 2)
    scores = np.where(np.tri(LENGTH, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    y = p @ v
    g = 1 - np.tanh(y) ** 2
    dp = g @ v.swapaxes(1, 2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    return [np.tanh(y).sum(), ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ g]


def test_gradients_are_those_of_the_formula(interpreter: Interpreter) -> None:
    random = np.random.default_rng(0)
    shape = (HEADS, LENGTH, WIDTH)
    arguments = [random.normal(size=shape, scale=3) for _ in "qkv"]
    text = _gradients("pcp-divide-late")
    divisions = [line for line in text.splitlines() if "stablehlo.divide" in line]
    assert divisions
    assert not [line for line in divisions if SCORES in line]
    got = interpreter.run(text, arguments)
    for result, want in zip(got, _closed_form(*arguments), strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-12, atol=1e-12)


def test_nothing_of_all_pairs_is_summed_for_the_derivative() -> None:
    """Two sums over scores are forward's; FlashAttention's backward adds none."""
    assert _sums_of_scores(_gradients("pcp-divide-late")) == 2
    assert _sums_of_scores(_gradients()) > 2


def _sums_of_scores(text: str) -> int:
    lines = text.splitlines()
    return sum("stablehlo.reduce(" in x and f"(tensor<{SCORES}>" in x for x in lines)


def test_a_maximum_that_differs_along_the_row_keeps_its_derivative(
    interpreter: Interpreter,
) -> None:
    """Of columns, subtracted in rows: (e · v) / s depends on it."""
    program = PROGRAM.replace(
        "maximum across dimensions = [2]", "maximum across dimensions = [1]"
    )
    program = program.replace(
        "broadcast_in_dim %m, dims = [0, 1]", "broadcast_in_dim %m, dims = [0, 2]"
    )
    assert program.count("dimensions = [1]") == program.count("dims = [0, 2]") == 1
    random = np.random.default_rng(1)
    shape = (HEADS, LENGTH, WIDTH)
    arguments = [random.normal(size=shape) for _ in "qkv"]
    late = interpreter.run(_gradients("pcp-divide-late", of=program), arguments)
    plain = interpreter.run(_gradients(of=program), arguments)
    for result, want in zip(late, plain, strict=True):
        np.testing.assert_array_equal(result, want)


def test_what_a_loop_gives_is_left() -> None:
    """An op of several results makes the operand, as in an LSTM's program."""
    text = """
    func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
      %n = stablehlo.constant dense<0> : tensor<i32>
      %0:2 = stablehlo.while(%i = %n, %y = %x) : tensor<i32>, tensor<4x4xf32>
       cond {
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        stablehlo.return %i, %y : tensor<i32>, tensor<4x4xf32>
      }
      %1 = stablehlo.dot_general %0#1, %x, contracting_dims = [1] x [0]
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      return %1 : tensor<4x4xf32>
    }
    """
    module = parse(text)
    before = str(module)
    catalog.pipeline("builtin.module(pcp-divide-late)").run(module)
    assert str(module) == before
