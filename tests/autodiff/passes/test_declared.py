"""A `pcp.grad` written by hand is the gradient that `jax.grad` gives."""

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
from pcp.errors import PassError

W, X = array(3, 4), array(4, seed=1)


def loss(w, x):
    return jnp.sum(jnp.tanh(w @ x) ** 2)


def declared(wrt: list[int], value: bool) -> str:
    """The loss, and a declaration of @main as its gradient."""
    text = str(jax.jit(loss).lower(W, X).as_text()).replace("@main", "@loss")
    said = f'sym_name = "main", fn = @loss, wrt = {wrt}, has_value = {value}'.lower()
    return text.rstrip().removesuffix("}") + f'"pcp.grad"() {{{said}}} : () -> ()\n}}'


@pytest.mark.parametrize("wrt", [[0], [1], [1, 0], []])
@pytest.mark.parametrize("value", [True, False])
def test_gradient(wrt: list[int], value: bool, interpreter: Interpreter) -> None:
    module = parse(declared(wrt, value))
    pipeline("builtin.module(pcp-grad)").run(module)
    found = interpreter.run(str(module), [W, X])
    wanted = jax.jit(jax.grad(loss, wrt or [0, 1]))(W, X)
    assert len(found) == len(wanted) + value
    if value:
        np.testing.assert_allclose(found.pop(0), loss(W, X), rtol=1e-5)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


TRAINED = """
{declaration}
func.func @main(
    %w: tensor<4xf32> {{pcp.name = "w", pcp.role = "param", pcp.init = "zeros"}},
    %x: tensor<4xf32> {{pcp.name = "x", pcp.role = "data"}}) -> tensor<f32> {{
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0]
      : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}}"""


def lowered(declaration: str = "") -> str:
    options = CompileOptions(mode="train", optimizer="sgd", algorithm="none")
    module = parse(TRAINED.format(declaration=declaration))
    return str(driver.lower(module, options).module)


def test_training_takes_the_gradient_that_the_model_declares() -> None:
    said = '"pcp.grad"() {fn = @main, sym_name = "grad", wrt = [0]} : () -> ()'
    assert lowered(said).count("func.func @") == lowered().count("func.func @")


def test_training_refuses_a_gradient_without_a_value() -> None:
    said = '"pcp.grad"() {fn = @main, has_value = false, sym_name = "grad", wrt = []}'
    with pytest.raises(PassError, match="training needs the value and the gradient"):
        lowered(f"{said} : () -> ()")


def test_options_of_one_function_are_refused_where_ops_say_theirs() -> None:
    module = parse(declared([], True))
    with pytest.raises(PassError, match=r"pcp\.grad says its own"):
        pipeline("builtin.module(pcp-grad{func= wrt=0})").run(module)
