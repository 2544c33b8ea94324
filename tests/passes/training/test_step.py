"""A `pcp.step` written by hand is a step of jax.grad and gradient descent."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from helpers.models.expanded_training import bundle, in_parallel, run_passes
from helpers.oracles.jax_gradients import array
from helpers.servers.interpreter import Interpreter

RATE = 0.3
W, X = array(4), array(4, seed=1)
PASSES = "pcp-grad,pcp-expand-training{func=},inline,symbol-dce"


def loss(w, x):
    return jnp.sum(jnp.sin(w * x))


MESH = """
"pcp.mesh"() {axes = [#pcp.axis<"islands", -1>], devices = [], sym_name = "m"}
    : () -> ()"""


def model(plan: str) -> str:
    """The data come first, so that the parameters are the second argument."""
    return f"""
"pcp.step"() {{grad = @grad, optimizer = @apply, plan = {plan}, sym_name = "main"}}
    : () -> ()
"pcp.grad"() {{fn = @loss, sym_name = "grad", wrt = [1]}} : () -> ()
func.func private @loss(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<f32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.multiply %w, %x : tensor<4xf32>
  %1 = stablehlo.sine %0 : tensor<4xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add
      across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}}
func.func private @apply(%w: tensor<4xf32>, %g: tensor<4xf32>, %n: tensor<i32>)
    -> (tensor<4xf32>, tensor<i32>) {{
  %t = builtin.unrealized_conversion_cast %w, %g, %n
      : tensor<4xf32>, tensor<4xf32>, tensor<i32>
      to tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>
  %u = "pcp.optimizer"(%t) {{count = 1, hyper = {{lr = {RATE}}}, kind = "sgd"}}
      : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>)
      -> tuple<tensor<4xf32>, tensor<i32>>
  %r:2 = builtin.unrealized_conversion_cast %u
      : tuple<tensor<4xf32>, tensor<i32>> to tensor<4xf32>, tensor<i32>
  return %r#0, %r#1 : tensor<4xf32>, tensor<i32>
}}"""


def test_alone(interpreter: Interpreter) -> None:
    module, step = str(run_passes(model("{}"), PASSES)), np.zeros((), np.int32)
    value, new, step = interpreter.run(module, [X, W, step])
    np.testing.assert_allclose(value, loss(W, X), rtol=1e-5)
    np.testing.assert_allclose(
        new, W - RATE * jax.jit(jax.grad(loss))(W, X), rtol=1e-5, atol=1e-6
    )
    assert step == 1


def test_over_a_mesh_gradients_are_means() -> None:
    data = [array(4, seed=s) for s in range(3)]

    def work(loaded: Any, rank: int) -> Any:
        return loaded["main"](data[rank], W, np.zeros((), np.int32))

    text = MESH + model("{mesh = @m}")
    code = bundle(run_passes(text, f"{PASSES},pcp-lower-to-runtime"))
    slope = np.mean([jax.jit(jax.grad(loss))(W, x) for x in data], axis=0)
    value = np.mean([loss(W, x) for x in data])
    for found, new, _ in in_parallel(code, 3, work):
        np.testing.assert_allclose(found, value, rtol=1e-5)
        np.testing.assert_allclose(new, W - RATE * slope, rtol=1e-5, atol=1e-6)
