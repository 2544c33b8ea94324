"""Sums that a derivative adds are made in f32, whatever the program's type.

Each sum here is of thousands of terms of one sign. Added up in bf16 it would stop
growing at 256 of them; rounded once it is within half a step of the exact sum.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.jax_gradients import transformed
from helpers.servers.interpreter import Interpreter
from jax import lax

ROWS = 10_000
#: Half the distance of two neighbours, relative.
HALF_STEP = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def gradient(
    interpreter: Interpreter,
    fn: Callable[..., Any],
    args: tuple[np.ndarray, ...],
    g: np.ndarray,
) -> np.ndarray:
    """The cotangent of the first argument of `fn`."""
    text = jax.jit(fn, keep_unused=True).lower(*args).as_text()
    derived = transformed(text, "pcp-vjp{wrt=0}")
    return interpreter.run(derived, [*args, g])[-1]


def ones_and_more(*shape: int) -> np.ndarray:
    """Numbers in [1, 2] that bf16 holds."""
    steps = np.random.default_rng(5).integers(0, 65, shape)
    return (1 + steps / 64).astype(np.float32)


@pytest.mark.parametrize("dtype", HALF_STEP)
def test_bias(interpreter: Interpreter, dtype: str) -> None:
    def fn(bias: Any) -> Any:
        wide = jnp.broadcast_to(bias.astype(dtype), (ROWS, 3))
        return wide.astype(jnp.float32)

    g = ones_and_more(ROWS, 3)
    ours = gradient(interpreter, fn, (np.zeros(3, np.float32),), g)
    np.testing.assert_allclose(ours, g.sum(0, np.float64), rtol=HALF_STEP[dtype])


@pytest.mark.parametrize("dtype", HALF_STEP)
def test_weights(interpreter: Interpreter, dtype: str) -> None:
    def fn(w: Any, x: Any) -> Any:
        return (x.astype(dtype) @ w.astype(dtype)).astype(jnp.float32)

    x, g = ones_and_more(3000, 2), ones_and_more(3000, 3)
    ours = gradient(interpreter, fn, (np.zeros((2, 3), np.float32), x), g)
    exact = x.T.astype(np.float64) @ g
    np.testing.assert_allclose(ours, exact, rtol=1.01 * HALF_STEP[dtype])


def test_kernel(interpreter: Interpreter) -> None:
    def fn(w: Any, x: Any) -> Any:
        y = lax.conv(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), (1, 1), "VALID")
        return y.astype(jnp.float32)

    x, g = ones_and_more(2, 1, 40, 40), ones_and_more(2, 1, 40, 40)
    ours = gradient(interpreter, fn, (np.zeros((1, 1, 1, 1), np.float32), x), g)
    exact = (x.astype(np.float64) * g).sum()
    np.testing.assert_allclose(ours.item(), exact, rtol=1.01 * 2.0**-8)


def test_embedding(interpreter: Interpreter) -> None:
    """One token that is read 3,000 times."""

    def fn(table: Any, tokens: Any) -> Any:
        return table.astype(jnp.bfloat16)[tokens].astype(jnp.float32)

    tokens, g = np.full(3000, 1, np.int32), ones_and_more(3000, 2)
    ours = gradient(interpreter, fn, (np.zeros((4, 2), np.float32), tokens), g)
    np.testing.assert_allclose(ours[1], g.sum(0, np.float64), rtol=2.0**-8)
    assert not ours[[0, 2, 3]].any()


@pytest.mark.slow  # a loop of many steps
def test_running_sum(interpreter: Interpreter) -> None:
    def fn(x: Any) -> Any:
        return lax.cumsum(x.astype(jnp.bfloat16)).astype(jnp.float32)

    g = ones_and_more(500)
    ours = gradient(interpreter, fn, (np.zeros(500, np.float32),), g)
    exact = np.cumsum(g[::-1], dtype=np.float64)[::-1]
    np.testing.assert_allclose(ours, exact, rtol=2.0**-8)


def test_ties(interpreter: Interpreter) -> None:
    """The shares of 1,000 equal elements add up to g."""

    def fn(x: Any) -> Any:
        return x.astype(jnp.bfloat16).max().astype(jnp.float32)

    ours = gradient(
        interpreter, fn, (np.zeros(1000, np.float32),), np.ones((), np.float32)
    )
    np.testing.assert_allclose(ours, np.full(1000, 1e-3), rtol=2.0**-8)


def test_a_sum_in_the_narrow_type_fails_these_bounds() -> None:
    """What is prevented: 10,000 ones added in bf16 are 256."""
    total = jnp.zeros((), jnp.bfloat16)
    for _ in range(300):
        total += jnp.ones((), jnp.bfloat16)
    assert float(total) == 256.0
