"""A `pcp.microbatch` written by hand is the region over the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.jax_gradients import array
from helpers.servers.interpreter import Interpreter

from pcp.compiler import driver
from pcp.compiler.catalog import pipeline
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import MissingRule
from pcp.runtime.program.executor import Program

BATCH, WIDTH = 6, 4
W, X = array(WIDTH), array(BATCH, WIDTH, seed=1)


def model(count: int, reduce: str) -> str:
    """Σ sin(x·w) over each piece, its mean or sum over the pieces."""
    rows = BATCH // count
    return f"""
func.func @main(%w: tensor<4xf32>, %x: tensor<6x4xf32>) -> tensor<f32> {{
  %0 = "pcp.microbatch"(%x) ({{
  ^bb0(%a: tensor<{rows}x4xf32>):
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
        : (tensor<{rows}x4xf32>, tensor<4xf32>) -> tensor<{rows}xf32>
    %s = stablehlo.sine %y : tensor<{rows}xf32>
    %l = stablehlo.reduce(%s init: %zero) applies stablehlo.add
        across dimensions = [0] : (tensor<{rows}xf32>, tensor<f32>) -> tensor<f32>
    "pcp.yield"(%l) : (tensor<f32>) -> ()
  }}) {{count = {count}, reduce = ["{reduce}"]}}
      : (tensor<6x4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}}"""


def whole(w, x):
    return jnp.sum(jnp.sin(x @ w))


def run(text: str, passes: str, interpreter: Interpreter) -> list[np.ndarray]:
    module = parse(text)
    pipeline(f"builtin.module({passes})").run(module)
    return interpreter.run(str(module), [W, X])


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_value(count: int, reduce: str, interpreter: Interpreter) -> None:
    [found] = run(model(count, reduce), "pcp-accumulate", interpreter)
    share = count if reduce == "mean" else 1
    np.testing.assert_allclose(found, whole(W, X) / share, rtol=1e-5, atol=1e-6)


def test_gradient_through_the_pieces(interpreter: Interpreter) -> None:
    text = model(3, "sum").replace("@main", "@loss")
    declared = '"pcp.grad"() {fn = @loss, sym_name = "main", wrt = [0, 1]} : () -> ()'
    found = run(f"{text}\n{declared}", "pcp-accumulate,pcp-grad", interpreter)
    for ours, theirs in zip(
        found[1:], jax.jit(jax.grad(whole, (0, 1)))(W, X), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_derivative_says_what_to_run_before() -> None:
    module = parse(model(3, "sum"))
    with pytest.raises(MissingRule, match="as a loop; run pcp-accumulate before"):
        pipeline("builtin.module(pcp-grad)").run(module)


@pytest.mark.slow  # a program more
def test_a_loss_of_pieces_compiles_for_training() -> None:
    named = {"w": "param", "x": "data"}
    text = model(3, "mean")
    for name, role in named.items():
        shape = {"w": "4", "x": "6x4"}[name]
        said = f'{{pcp.name = "{name}", pcp.role = "{role}", pcp.init = "zeros"}}'
        plain = f"%{name}: tensor<{shape}xf32>"
        text = text.replace(plain, f"{plain} {said}", 1)
    options = CompileOptions(mode="train", optimizer="sgd", algorithm="none")
    with Program.load(driver.compile(parse(text), options)) as loaded:
        value, slope = loaded["grad"](W, X)
    np.testing.assert_allclose(value, whole(W, X) / 3, rtol=1e-5, atol=1e-6)
    wanted = np.asarray(jax.jit(jax.grad(whole))(W, X)) / 3
    np.testing.assert_allclose(slope, wanted, rtol=1e-5, atol=1e-6)
