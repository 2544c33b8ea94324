"""Functions of complex numbers through IREE, against numpy in more bits and JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.servers.iree_server import Iree
from jax import lax

from pcp.compiler.emission import target_text
from pcp.compiler.targets import find
from pcp.dialect.context import parse

COUNT = 4096


def _log_plus_one(z: Any) -> Any:
    """numpy's own takes the logarithm of what 1 + z rounds to."""
    a, b = z.real, z.imag
    return np.log1p(a * (a + 2) + b * b) / 2 + 1j * np.angle(1 + z)


def _logistic(z: Any) -> Any:
    left = np.minimum(z.real, 0)
    return np.exp(left) / (np.exp(left) + np.exp(left - z))


FUNCTIONS: dict[str, Callable] = {
    "abs": np.abs,
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "log_plus_one": _log_plus_one,
    "logistic": _logistic,
    "rsqrt": lambda z: 1 / np.sqrt(z),
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


def _program(element: str) -> str:
    z, r = (f"tensor<{COUNT}x{e}>" for e in (f"complex<{element}>", element))
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
    errors = _errors(iree.run_all, "f32", np.complex64, size)
    for name, error in errors.items():
        limit = 1e-5 if name == "log" else 2e-6  # log|z| near |z| = 1
        assert error <= limit, name


@pytest.mark.parametrize("size", [1e-200, 1e-10, 1.0, 300.0, 1e250])
def test_the_error_in_twice_the_bits(iree: Iree, size: float) -> None:
    """The same of complex128, compiled as a whole for a target."""

    def run(text: str, calls: dict) -> list:
        lowered = target_text(parse(text), find("cpu:host")).plain
        return iree.run_all(lowered, calls)

    for name, error in _errors(run, "f64", np.complex128, size).items():
        assert error <= (1e-13 if name == "log" else 4e-15), name


def _errors(run: Callable, element: str, dtype: type, size: float) -> dict[str, float]:
    """The largest error of each function over the size of its result, in a square."""
    random = np.random.default_rng(0)
    z = (random.uniform(-size, size, (2, COUNT)).T @ [1, 1j]).astype(dtype)
    wide, info = z.astype(np.clongdouble), np.finfo(dtype)
    answers = run(_program(element), {name: [z] for name in FUNCTIONS})
    errors = {}
    for (name, exact), answer in zip(FUNCTIONS.items(), answers, strict=True):
        assert not isinstance(answer, str), (name, answer)
        with np.errstate(all="ignore"):
            want = exact(wide)
            error = np.abs(answer[0] - want) / np.abs(want)
        held = (np.abs(want) < 0.1 * info.max) & (np.abs(want) > 100 * info.tiny)
        errors[name] = float(error[held].max(initial=0))
    return errors


ROOTS = [0.0, 1.0, 3e-3, 7e20, np.inf, np.nan]


@pytest.mark.parametrize(("element", "dtype"), [("f32", "F"), ("f64", "D")])
def test_roots_at_special_values(iree: Iree, element: str, dtype: str) -> None:
    """√z as numpy's, zeros and their signs included: the cut ends at -0. 1/√z has
    JAX's values at 0 and infinity."""
    real = np.finfo(dtype).dtype
    parts = np.array([*ROOTS, *(-p for p in ROOTS[:-1])], real)
    a, b = (m.reshape(-1) for m in np.meshgrid(parts, parts))
    z = np.stack([a, b], 1).view(dtype)[:, 0]
    type_ = f"tensor<{z.size}xcomplex<{element}>>"
    text = "".join(
        f"func.func @{name}(%z: {type_}) -> {type_} {{\n"
        f"  %0 = stablehlo.{name} %z : {type_}\n  return %0 : {type_}\n}}\n"
        for name in ("sqrt", "rsqrt")
    )
    lowered = target_text(parse(legalized(text)), find("cpu:host")).plain
    answers: Any = iree.run_all(lowered, {"sqrt": [z], "rsqrt": [z]})
    (root,), (inverse,) = answers
    with np.errstate(all="ignore"):
        want = np.sqrt(z)
    for part in (np.real, np.imag):
        got, true = part(root), part(want)
        np.testing.assert_allclose(got, true, rtol=4e-7)
        known = ~np.isnan(true)
        np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(true)[known])
    infinite = np.isinf(a) | np.isinf(b)
    assert np.all(inverse[infinite] == 0)
    zero = z == 0
    assert np.all(np.isposinf(inverse[zero].real))
    assert np.all(np.isnan(inverse[zero].imag))
    finite = np.isfinite(z) & ~zero
    np.testing.assert_allclose(inverse[finite], 1 / want[finite], rtol=1e-6)


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
