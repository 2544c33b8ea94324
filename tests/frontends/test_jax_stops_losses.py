"""Losses of JAX with stops, as users write them, from pcp.compile to the gradient."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.jax_gradients import (
    assert_close,
)
from jax import lax
from jax.scipy.sparse import linalg

import pcp

stop = lax.stop_gradient


def _straight_through(p: Any) -> Any:
    weights = p + stop(jnp.round(p) - p)
    return jnp.mean((weights - 0.3) ** 2)


def _vq_vae(p: dict[str, Any]) -> Any:
    latent, book = jnp.tanh(p["encoder"]), p["book"]
    distance = jnp.sum((latent[:, None] - book) ** 2, axis=-1)
    chosen = book[jnp.argmin(distance, axis=1)]
    decoded = (latent + stop(chosen - latent)) @ p["decoder"]
    commitment = jnp.mean((latent - stop(chosen)) ** 2)
    return (
        jnp.mean((decoded - 0.5) ** 2)
        + jnp.mean((stop(latent) - chosen) ** 2)
        + 0.25 * commitment
    )


def _dqn(p: Any) -> Any:
    here = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
    after, action = jnp.cos(here), jnp.array([0, 1, 1, 0])
    target = 0.5 + 0.9 * stop(jnp.max(jnp.tanh(after @ p), axis=1))
    value = jnp.take_along_axis(jnp.tanh(here @ p), action[:, None], axis=1)[:, 0]
    return jnp.mean((value - target) ** 2)


def _ppo(p: Any) -> Any:
    here = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
    value = jnp.sum(jnp.sin(here @ p), axis=1)
    chance = jax.nn.log_softmax(here @ p)[:, 0]
    advantage = jnp.array([1.0, -0.5, 2.0, 0.3]) - stop(value)
    ratio = jnp.exp(chance - stop(chance))
    clipped = jnp.clip(ratio, 0.8, 1.2)
    policy = jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
    return jnp.mean((value - 0.2) ** 2) - policy


def _distillation(p: dict[str, Any]) -> Any:
    teacher = stop(jax.nn.log_softmax(p["teacher"]))
    student = jax.nn.log_softmax(p["student"])
    return jnp.mean(jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1))


def _truncated(p: Any) -> Any:
    """Backpropagation through time that goes back one step."""

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        after = jnp.tanh(p @ stop(carry) + row)
        return after, jnp.mean(after**2)

    rows = jnp.linspace(-1.0, 1.0, 15).reshape(5, 3)
    last, losses = lax.scan(step, p[0], rows)
    return jnp.mean(losses) + jnp.sum(last)


def _cut(p: Any) -> Any:
    """The same cut at the other end of a step."""
    rows = jnp.linspace(-1.0, 1.0, 15).reshape(5, 3)

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        after = jnp.tanh(p * carry + row)
        return stop(after), jnp.mean(after**2)

    last, losses = lax.scan(step, p, rows)
    return jnp.mean(losses) + jnp.sum(last)


def _solved(p: Any) -> Any:
    """One step of conjugate gradients is far from a solution; its derivative is not."""

    def solve(of: Any, b: Any) -> Any:
        return linalg.cg(of, b, maxiter=1)[0]

    matrix = jnp.eye(3) * 2.0 + jnp.outer(p, p)
    given = jnp.array([1.0, 2.0, -1.0])
    return jnp.sum(
        lax.custom_linear_solve(
            lambda v: matrix @ v, p * given, solve=solve, symmetric=True
        )
        ** 2
    )


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).uniform(-1.0, 1.0, shape).astype(np.float32)


LOSSES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "product": (lambda p: jnp.sum(stop(p) * p), _weights(3)),
    "straight_through": (_straight_through, 3.0 * _weights(6)),
    "vq_vae": (
        _vq_vae,
        {"encoder": _weights(4, 3), "book": _weights(5, 3), "decoder": _weights(3, 2)},
    ),
    "dqn": (_dqn, _weights(3, 2)),
    "ppo": (_ppo, _weights(3, 4)),
    "distillation": (
        _distillation,
        {"teacher": _weights(4, 7), "student": _weights(7, 4).T.copy()},
    ),
    "truncated": (_truncated, _weights(3, 3)),
    "cut": (_cut, _weights(3)),
    "linear_solve": (_solved, _weights(3)),
}


def _losses(params: dict[str, Any]) -> Any:
    return sum(LOSSES[name][0](p) for name, p in params.items())


@cache
def _compiled() -> dict[str, tuple[Any, Any]]:
    """(our gradient, JAX's) of each loss: one program, compiled once."""
    params = {name: p for name, (_, p) in LOSSES.items()}
    bundle = pcp.compile(pcp.from_jax(_losses, params), ["cpu:host"], mode="grad")
    leaves, tree = jax.tree.flatten(params)
    with pcp.Program.load(bundle, device="local-sync") as program:
        _, *found = [np.array(v) for v in program["grad"](*leaves)]
    ours = jax.tree.unflatten(tree, found)
    return {
        name: (ours[name], jax.grad(LOSSES[name][0])(p)) for name, p in params.items()
    }


@pytest.mark.slow  # IREE compiles nine losses; test_jax_stops.py: programs
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_losses(name: str) -> None:
    ours, theirs = _compiled()[name]
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert_close(a, b, 2e-5, name)
