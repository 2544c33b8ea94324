"""from_jax: state, frozen arguments, keys and metrics; the oracle is JAX itself."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pcp
from pcp.errors import IRError, UsageError
from pcp.frontends.jax import from_jax
from pcp.frontends.signature import arguments_of, results_of

P = {"w": jnp.linspace(0.1, 1.0, 4), "b": jnp.zeros(4)}
STATE = {"mean": jnp.zeros(4), "seen": jnp.zeros((), jnp.int32)}
BASE, X = jnp.linspace(1.0, 2.0, 4), jnp.linspace(-1.0, 2.0, 12).reshape(3, 4)
KEY = jnp.array([7, 9], jnp.uint32)


def loss(params: Any, state: Any, base: Any, rng: Any, x: Any) -> Any:
    """Dropout by a split key, noise, a running mean, and two metrics."""
    first, second = jax.random.split(rng)
    h = params["w"] * x * base + params["b"]
    h = jnp.where(jax.random.bernoulli(first, 0.9, h.shape), h / 0.9, 0.0)
    h = h + 0.1 * jax.random.normal(second, h.shape)
    mean = 0.9 * state["mean"] + 0.1 * h.mean(0)
    new = {"mean": jax.lax.stop_gradient(mean), "seen": state["seen"] + len(x)}
    metrics = {"size": jnp.abs(h).mean(), "positive": (h > 0).sum()}
    return ((h - state["mean"]) ** 2).mean(), (new, metrics)


ROLES: dict[str, Any] = {"state": [1], "frozen": [2], "key": 3, "has_aux": True}


def _module(**other: Any) -> Any:
    return from_jax(loss, P, STATE, BASE, KEY, X, **(ROLES | other))


def test_roles_and_names() -> None:
    module = _module()
    assert [(a.name, a.role) for a in arguments_of(module)] == [
        ("params.b", "param"),
        ("params.w", "param"),
        ("state.mean", "state"),
        ("state.seen", "state"),
        ("base", "frozen"),
        ("rng", "key"),
        ("x", "data"),
    ]
    assert [(r.name, r.role) for r in results_of(module)] == [
        ("loss", "loss"),
        ("state.mean", "state"),
        ("state.seen", "state"),
        ("positive", "metric"),
        ("size", "metric"),
    ]


@pytest.mark.slow  # test_evaluation.py trains with state
def test_the_numbers_are_jaxs() -> None:
    """The key is split in the program: the bits are those that JAX draws."""
    bundle = pcp.compile(_module(), targets=["cpu:host"], mode="grad")
    given = [P["b"], P["w"], STATE["mean"], STATE["seen"], BASE, KEY, X]
    with pcp.Program.load(bundle, device="local-sync") as program:
        found = [np.array(x) for x in program["grad"](*map(np.asarray, given))]
    asked = jax.jit(jax.value_and_grad(loss, has_aux=True))(P, STATE, BASE, KEY, X)
    (value, (state, metrics)), gradients = asked
    wanted = [value, state["mean"], state["seen"], *jax.tree.leaves(metrics)]
    wanted += jax.tree.leaves(gradients)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_typed_key_is_one_too() -> None:
    module = from_jax(loss, P, STATE, BASE, jax.random.key(0), X, **ROLES)
    assert [a.role for a in arguments_of(module)].count("key") == 1


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"key": 5}, "key=.5.: there is no argument 5"),
        ({"frozen": [1]}, "argument 1 is given two roles"),
    ],
)
def test_positions_are_checked(roles: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _module(**roles)


def test_what_comes_beside_the_loss_is_checked() -> None:
    with pytest.raises(IRError, match="the metric size has the shape"):
        from_jax(lambda w, x: ((w * x).sum(), {"size": x}), BASE, BASE, has_aux=True)
    with pytest.raises(IRError, match="returns no pair"):
        from_jax(lambda w, s: (w * s).sum(), BASE, BASE, state=[1])
    with pytest.raises(IRError, match=r"the new state is .* the argument is"):
        from_jax(lambda w, s: ((w * s).sum(), [s, s]), BASE, BASE, state=[1])
