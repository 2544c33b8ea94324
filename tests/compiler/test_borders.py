"""Programs that IREE alone refuses, stops at or gets wrong, compiled for `cpu`.

JAX is the oracle. All forward programs are one bundle, or one more of slow ones.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.jax_gradients import assert_close
from helpers.sampled import sampled
from jax import lax
from jax.scipy import special

import pcp

INF = np.inf
REAL = np.array([-0.5, -1.5, 3.3, -1e-30, 1e-30, 0.0, -0.0, 2.0, -3.0], np.float32)
ROWS = np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32)
AT = np.array([0, 2, 1])
POWERS = np.array([-INF, INF, complex(-2, 0), complex(2, 3), 0], np.complex64)


def _whole(x: Any) -> Any:
    return jnp.where(jnp.floor(x) == x, 2 * x, x), jnp.ceil(x) != x


def _cumulative(u: Any) -> Any:
    product = lax.cumprod(u, reverse=True)
    return jnp.cumsum(u, dtype=u.dtype), product, lax.cummax(u), lax.cummin(u)


def _keys(x: Any) -> Any:
    """A constant key, split twice: IREE stopped at a copy between the loops.

    Beside any loop or branch IREE took 10 GB to write it out (`_counted`).
    """
    first, second = jax.random.split(jax.random.PRNGKey(0))
    return x * jax.random.normal(first, (3,)) + jax.random.uniform(second, (3,))


def _nothing(x: Any) -> Any:
    """Products and convolutions over an empty dimension, and a gradient of one."""
    rows = jnp.stack([x, x])
    image = jnp.zeros((1, 0, 5, 5))
    return (
        x.T @ x,
        jnp.einsum("bki,bkj->bij", rows.astype(jnp.bfloat16), rows).astype(jnp.float32),
        lax.conv(image, jnp.zeros((4, 0, 3, 3)), (1, 1), "SAME"),
        jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(jnp.ones((3, 2))),
    )


def _counted(x: Any) -> Any:
    """A branch copies a count that begins as the copy's own number once did: 0."""
    ways = (lambda a, b, n: (b, a, n + 1), lambda a, b, n: (jnp.sin(a), b + 1, n))

    def step(carry: Any, row: Any) -> Any:
        return lax.cond(row[0] > 0, *ways, *carry), None

    return lax.scan(step, (x[0], x[1], jnp.int32(0)), x)[0]


def _integers(dtype: Any) -> np.ndarray:
    return np.array([3, 1, 200, 2, 255, 0, 7], np.int64).astype(dtype)


PROGRAMS: dict[str, tuple[Callable[..., Any], Any]] = {
    "whole f32": (_whole, np.array([1, 1.5, -2.5, -0.0, INF, np.nan, 3e9], np.float32)),
    "whole f16": (_whole, np.array([1, 1.5, -2.5, -0.0, INF, np.nan], np.float16)),
    "counted in a branch": (_counted, ROWS),
    "digamma": (special.digamma, REAL),
    "digamma f16": (special.digamma, np.array([-0.5, -1.5, 3.3], np.float16)),
    "complex power": (lambda z: z ** jnp.complex64(2.5), POWERS),
    "keys": (_keys, np.float32(2.0)),
    "reversed slice": (lambda x: x[::-2, ::3][:, ::-1] * 2, ROWS),
    "sums of a reversed slice": (lambda x: jnp.cumsum(x[0][8:1:-3]), ROWS),
    "reversed column": (lambda x: x.reshape(3, 7, 3)[:, :, 0][:, ::-1], ROWS),
    "places in a column": (lambda x: x.reshape(3, 7, 3)[..., 1][AT, AT + 1], ROWS),
    "sorted columns": (lambda x: jnp.sort(x[:, 1:3], 0), ROWS),
    "of nothing": (_nothing, np.zeros((0, 3), np.float32)),
    "integers to bf16": (
        lambda n: (n.astype(jnp.bfloat16) * 2).astype(jnp.float32),
        _integers(np.int32),
    ),
    **{
        f"cumulative {np.dtype(t)}": (_cumulative, _integers(t))
        for t in (np.uint8, np.uint32, np.int8)
    },
    **{
        f"reversed {np.dtype(t)}": (lambda u: (u[::-1], jnp.flip(u[::2])), _integers(t))
        for t in (np.uint8, np.uint16, np.bool_)
    },
}


#: Those whose programs are large, and types between others.
SLOW = {
    *("digamma", "digamma f16", "complex power", "keys", "of nothing"),
    *("cumulative uint32", "cumulative int8"),
}


@cache
def _compiled(slow: bool) -> dict[str, tuple[list[np.ndarray], list[np.ndarray]]]:
    """(our results, JAX's) of each program of a bundle."""
    programs = {n: p for n, p in PROGRAMS.items() if (n in SLOW) == slow}
    functions = [fn for fn, _ in programs.values()]
    given = [x for _, x in programs.values()]

    def every(*xs: Any) -> Any:
        return [fn(x) for fn, x in zip(functions, xs, strict=True)]

    theirs = [jax.tree.leaves(part) for part in jax.jit(every)(*given)]
    bundle = pcp.compile(pcp.from_jax(every, *given, params=()), mode="forward")
    with pcp.Program.load(bundle, device="local-sync") as program:
        ours = iter([np.array(v) for v in program["main"](*given)])
    return {
        name: ([next(ours) for _ in part], [np.asarray(v) for v in part])
        for name, part in zip(programs, theirs, strict=True)
    }


@sampled("name", PROGRAMS, PROGRAMS.keys() - SLOW)
def test_forward(name: str) -> None:
    for ours, theirs in zip(*_compiled(name in SLOW)[name], strict=True):
        if theirs.dtype.kind in "biu":
            np.testing.assert_array_equal(ours, theirs)
            continue
        narrow = theirs.dtype.itemsize == 2
        np.testing.assert_allclose(ours, theirs, rtol=2e-3 if narrow else 2e-5)


def _loss(x: Any) -> Any:
    """A slice that is reversed, the keys above, and what is pooled with ties."""
    stop = lax.stop_gradient
    steps = stop(jnp.round(x)) + (x - stop(x))
    pooled = lax.reduce_window(steps, -INF, lax.max, (3, 3), (2, 2), "SAME")
    places = jnp.arange(1.0, 1.0 + pooled.size).reshape(pooled.shape)
    reversed_ = jnp.sum(x[0, ::2][::-1] * x[0, :5])
    return reversed_ + jnp.sum(_keys(x[1, 0])) + jnp.sum(pooled * places)


def _circle(x: Any) -> Any:
    """IREE alone makes a circle of its loops' operands."""
    return jnp.sum(special.exp1(x * x + 0.2))


@pytest.mark.slow  # seconds of IREE; all is above, forward
@pytest.mark.parametrize(
    "loss",
    # Slow: ten seconds of IREE, and all that it has is above, forward.
    [pytest.param(_loss, marks=pytest.mark.slow), _circle],
)
def test_gradient(loss: Callable[[Any], Any]) -> None:
    bundle = pcp.compile(pcp.from_jax(loss, ROWS), mode="grad")
    with pcp.Program.load(bundle, device="local-sync") as program:
        value, gradient = map(np.array, program["grad"](ROWS))
    wanted = jax.value_and_grad(loss)(ROWS)
    assert_close(value, np.asarray(wanted[0]), 2e-5, "value")
    assert_close(gradient, np.asarray(wanted[1]), 2e-5, "gradient")
