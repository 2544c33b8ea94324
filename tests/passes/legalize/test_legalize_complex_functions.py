"""Functions of complex numbers through IREE, against numpy in more bits and JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.accuracy import complexes
from helpers.oracles.legalized import legalized
from helpers.servers.iree_server import Iree
from jax import lax

from pcp.compiler.emission import target_text
from pcp.compiler.targets import find
from pcp.dialect.context import parse
from pcp.passes.legalize.functions.accuracy import COMPLEX

COUNT = 4096


_F64 = "complex<f64>"  # compiles for five seconds


@pytest.mark.slow  # special values are below
@pytest.mark.parametrize(
    "element",
    [pytest.param(t, marks=[pytest.mark.slow] * (t == _F64)) for t in complexes.TYPES],
)
def test_the_largest_error_is_below_its_bound(iree: Iree, element: str) -> None:
    """Of all sizes: no intermediate overflows before the result does."""
    program = parse(complexes.program(element, COUNT))
    text = target_text(program, find("cpu:host")).plain
    for size in complexes.SIZES[element]:
        z = complexes.points(element, size, COUNT)
        answers = iree.run_all(text, {name: [z] for name in complexes.FUNCTIONS})
        for name, answer in zip(complexes.FUNCTIONS, answers, strict=True):
            assert not isinstance(answer, str), (name, answer)
            worst = complexes.errors(name, z, answer[0]).max()
            assert worst <= COMPLEX[name][element], (name, size)


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
