"""Sine, cosine and tangent through IREE against f64, as XLA's exhaustive tests do it.

An error is counted in units in the last place (ulp) of the reference, rounded to the
type of the result.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.servers.iree_server import Iree

from pcp.dialect.context import parse
from pcp.passes.ingest.import_ import Import
from pcp.passes.legalize.legalize import Legalize
from pcp.passes.legalize.legalize_trigonometry import TWO_OVER_PI

COUNT = 1 << 14
FUNCTIONS: dict[str, Callable] = {"sine": np.sin, "cosine": np.cos, "tan": np.tan}
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
# Largest error in ulp; what is rounded from f32 to less is half an ulp off.
ULP = {"sine": 1.75, "cosine": 1.75, "tan": 4.0}
NARROW = 0.502


def _program(count: int, types: tuple[str, ...] = tuple(TYPES)) -> str:
    def function(name: str, element: str) -> str:
        type_ = f"tensor<{count}x{element}>"
        return f"""
func.func @{name}_{element}(%x: {type_}) -> {type_} {{
  %0 = stablehlo.{name} %x : {type_}
  return %0 : {type_}
}}"""

    return legalized("".join(function(n, e) for n in FUNCTIONS for e in types))


def _inputs() -> dict[str, np.ndarray]:
    """From every range: tiny, RoPE's, far, all bit patterns, multiples of π/2."""
    random = np.random.default_rng(0)
    patterns = random.integers(0, 0x7F800000, COUNT, dtype=np.int32)
    return {
        "tiny": np.exp(random.uniform(-100, 0, COUNT)).astype(np.float32),
        "near": random.uniform(0, 4, COUNT).astype(np.float32),
        "positions": random.uniform(0, 65536, COUNT).astype(np.float32),
        "far": random.uniform(0, 2**20, COUNT).astype(np.float32),
        "any": patterns.view(np.float32),
        "quarters": (np.arange(COUNT) * (np.pi / 2)).astype(np.float32),
        # Nearest of all f32 to a multiple of π/2.
        "worst": np.full(COUNT, 16367173.0 * 2.0**72, np.float32),
    }


def _exact(name: str, x: np.ndarray) -> np.ndarray:
    """In f64, whose own reduction is exact (glibc's is)."""
    return FUNCTIONS[name](x.astype(np.float64))


def _ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    info = ml_dtypes.finfo(got.dtype)
    _, exponent = np.frexp(np.maximum(np.abs(want), float(info.smallest_normal)))
    spacing = np.ldexp(float(info.eps), exponent - 1)
    return np.abs(got.astype(np.float64) - want) / spacing


@pytest.mark.parametrize("element", TYPES)
def test_the_error_is_a_few_ulp_everywhere(each_cpu: Iree, element: str) -> None:
    text, dtype = _program(COUNT), TYPES[element]
    for place, x in _inputs().items():
        given = np.minimum(x, np.float32(ml_dtypes.finfo(dtype).max)).astype(dtype)
        calls = {f"{name}_{element}": [given] for name in FUNCTIONS}
        for name, answer in zip(FUNCTIONS, each_cpu.run_all(text, calls), strict=True):
            assert not isinstance(answer, str), answer
            found = np.asarray(answer[0]).view(dtype)
            limit = ULP[name] if element == "f32" else NARROW
            want = _exact(name, given)
            # A generic CPU rounds f32 below the normal f16 to zero.
            size, info = np.abs(want), ml_dtypes.finfo(dtype)
            held = (size >= info.smallest_normal) & (size <= info.max)
            held |= element == "f32"
            worst = _ulps(found, want)[held].max(initial=0)
            assert worst <= limit, (name, element, place, worst)


def _call(iree: Iree, text: str, name: str, x: np.ndarray) -> np.ndarray:
    (answer,) = iree.run_all(text, {name: [x]})
    assert not isinstance(answer, str), answer
    return answer[0]


def test_odd_and_even_to_the_bit(each_cpu: Iree) -> None:
    text = _program(COUNT)
    for x in _inputs().values():
        for name in FUNCTIONS:
            there, back = (_call(each_cpu, text, f"{name}_f32", v) for v in (x, -x))
            mirrored = back if name == "cosine" else -back
            np.testing.assert_array_equal(
                there.view(np.int32), mirrored.view(np.int32), err_msg=name
            )


SPECIAL = [0.0, 1e-45, 1e-39, 1e-10, 1e-3, np.pi, 1e30, 3.4028235e38, np.inf, np.nan]


def test_special_values_are_those_of_jax(each_cpu: Iree) -> None:
    """Zeros keep their sign, subnormal numbers pass, infinities are NaN."""
    x = np.array([*SPECIAL, *(-v for v in SPECIAL)], np.float32)

    def functions(x):
        return jnp.sin(x), jnp.cos(x), jnp.tan(x)

    jitted = jax.jit(functions)
    found = each_cpu.run(legalized(jitted.lower(x).as_text()), [x])
    for got, want in zip(found, jitted(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=5e-7, atol=0)
        known = ~np.isnan(got)
        np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])


def test_digamma_at_the_edge_of_its_pole(iree: Iree) -> None:
    """Its reflection is π/tan(πx): it needs the sine of the smallest numbers."""
    jitted = jax.jit(jax.scipy.special.digamma)
    x = np.array([-1e-30, -1e-10, 1e-30, 1e-10, -0.3, -2.5, 3.0], np.float32)
    (got,) = iree.run(legalized(jitted.lower(x).as_text()), [x])
    np.testing.assert_allclose(got, jitted(x), rtol=2e-6)


@pytest.mark.slow  # a program more
def test_a_gradient_at_far_positions(iree: Iree) -> None:
    """d/dx of sin²(x) + cos(3x): derivatives are sines, too."""
    from pcp.autodiff.passes.derivatives import Grad

    def loss(x):
        return jnp.sum(jnp.sin(x) ** 2 + jnp.cos(3 * x))

    x = np.random.default_rng(1).uniform(-2e5, 2e5, 4096).astype(np.float32)
    module = parse(jax.jit(loss).lower(x).as_text())
    Import().run(module)
    Grad(name_="slope").run(module)
    Legalize().run(module)
    wide, thrice = x.astype(np.float64), np.float32(3) * x
    want = np.sin(2 * wide) - 3 * np.sin(thrice.astype(np.float64))
    (found,) = iree.run_all(str(module), {"slope": [x]})
    assert not isinstance(found, str), found
    np.testing.assert_allclose(found[-1], want, rtol=0, atol=1.5e-6)


def test_the_digits_of_two_over_pi() -> None:
    """From π by Machin's formula in integers."""
    one = 1 << 260

    def arctan_of_inverse(n: int) -> int:
        total, term, k = 0, one // n, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term, k = term // (n * n), k + 1
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    digits = (2 * one << (32 * len(TWO_OVER_PI) - 26)) // pi
    held = 0
    for word in TWO_OVER_PI:
        held = held << 32 | word
    assert held == digits


@pytest.mark.slow
def test_every_positive_number(each_cpu: Iree) -> None:
    """All 2³¹ - 2²³ finite f32, in steps of 127: 2²⁴ of them."""
    count = 1 << 18
    text = _program(count, ("f32",))
    patterns = np.arange(0, 0x7F800000, 127, dtype=np.int32)
    for start in range(0, len(patterns), count):
        x = np.resize(patterns[start : start + count], count).view(np.float32)
        for name in FUNCTIONS:
            found = _call(each_cpu, text, f"{name}_f32", x)
            worst = _ulps(found, _exact(name, x)).max()
            assert worst <= ULP[name], (name, start, worst)
