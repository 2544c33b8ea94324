"""Functions of complex numbers through IREE, against numpy in complex128 and JAX."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.servers.iree_server import Iree
from jax import lax

COUNT = 4096
FUNCTIONS: dict[str, Callable] = {
    "abs": np.abs,
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "sine": np.sin,
    "tan": np.tan,
    "tanh": np.tanh,
}


def _program() -> str:
    z, r = (f"tensor<{COUNT}x{e}>" for e in ("complex<f32>", "f32"))
    return legalized(
        "".join(
            f"""
func.func @{name}(%z: {z}) -> {r if name == "abs" else z} {{
  %0 = stablehlo.{name} %z : {f"({z}) -> {r}" if name == "abs" else z}
  return %0 : {r if name == "abs" else z}
}}"""
            for name in FUNCTIONS
        )
    )


@pytest.mark.parametrize("size", [1e-10, 1e-3, 1.0, 80.0, 1e30])
def test_the_error_relative_to_the_size(iree: Iree, size: float) -> None:
    """Where the result is a number of f32: no intermediate overflows before it."""
    random = np.random.default_rng(0)
    parts = random.uniform(-size, size, (2, COUNT)).astype(np.float32)
    z = (parts[0] + 1j * parts[1]).astype(np.complex64)
    answers = iree.run_all(_program(), {name: [z] for name in FUNCTIONS})
    for (name, exact), answer in zip(FUNCTIONS.items(), answers, strict=True):
        assert not isinstance(answer, str), (name, answer)
        with np.errstate(all="ignore"):
            want = exact(z.astype(np.complex128))
            error = np.abs(answer[0] - want) / np.abs(want)
        held = (np.abs(want) < 3e38) & (np.abs(want) > 1e-37)
        limit = 1e-5 if name == "log" else 2e-6  # log|z| near |z| = 1
        assert error[held].max(initial=0) <= limit, name


@pytest.mark.parametrize(
    ("name", "function"), [("divide", lax.div), ("power", lax.pow)]
)
def test_of_two_numbers(iree: Iree, name: str, function: Callable) -> None:
    """Sizes from 1e-30 to 1e30 divided by each other; powers of moderate size."""
    random = np.random.default_rng(1)
    low, high = (-30, 30) if name == "divide" else (-1, 1)
    size = 10 ** random.uniform(low, high, (2, COUNT))
    turn = random.uniform(-np.pi, np.pi, (2, COUNT))
    x, y = (size * np.exp(1j * turn)).astype(np.complex64)
    text = jax.jit(function).lower(x, y).as_text()
    (got,) = iree.run(legalized(text), [x, y])
    exact = {"divide": np.divide, "power": np.power}[name]
    want = exact(x.astype(np.complex128), y.astype(np.complex128))
    # Below, a part may be subnormal, which the target takes for zero.
    held = (np.abs(want) < 1e38) & (np.abs(want) > 1e-32)
    error = np.abs(got - want)[held] / np.abs(want)[held]
    assert error.max() <= 2e-5


def test_division_by_zero_and_infinity_is_that_of_jax(iree: Iree) -> None:
    points = np.array([0, 1, -2, 0.5, 1e30, np.inf, -np.inf], np.float32)
    a, b = (m.reshape(-1) for m in np.meshgrid(points, points))
    z = np.stack([a, b], 1).view(np.complex64)[:, 0]
    x, y = (m.reshape(-1) for m in np.meshgrid(z, z))
    jitted = jax.jit(lax.div)
    want = np.asarray(jitted(x, y))
    (got,) = iree.run(legalized(jitted.lower(x, y).as_text()), [x, y])
    known = np.isfinite(want)
    np.testing.assert_allclose(got[known], want[known], rtol=1e-6)


POINTS = [0.0, 1e-30, 0.5, 3.0, 1e30, np.inf, np.nan]


def test_the_size_at_special_values(iree: Iree) -> None:
    """Infinite where one part is, though the other be NaN; as JAX says otherwise."""
    parts = np.array([*POINTS, *(-p for p in POINTS)], np.float32)
    a, b = (m.reshape(-1) for m in np.meshgrid(parts, parts))
    z = np.stack([a, b], 1).view(np.complex64)[:, 0]
    jitted = jax.jit(jnp.abs)
    (got,) = iree.run(legalized(jitted.lower(z).as_text()), [z])
    np.testing.assert_allclose(got, np.hypot(a, b), rtol=3e-7)
    known = ~(np.isnan(a) | np.isnan(b))
    np.testing.assert_allclose(got[known], jitted(z)[known], rtol=3e-7)


def test_a_real_exponent_stays_real(iree: Iree) -> None:
    """e^(a + 0i) has no NaN where e^a is infinite."""
    parts = [[100, 0], [-np.inf, -0.0], [np.inf, 0], [1, 0], [88.9, 1.5]]
    z = np.array(parts, np.float32).view(np.complex64)[:, 0]
    jitted = jax.jit(jnp.exp)
    (got,) = iree.run(legalized(jitted.lower(z).as_text()), [z])
    want = np.asarray(jitted(z))
    for part in (np.real, np.imag):
        np.testing.assert_allclose(part(got), part(want), rtol=1e-5)
