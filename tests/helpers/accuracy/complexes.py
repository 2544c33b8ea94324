"""Complex functions where they are measured: their formulas, points and programs.

An error is the size of a difference over the size of the exact result, in the spacing
of numbers at 1. Parts are drawn from squares about 0, whose sizes span those at which
a result is a number.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from helpers.oracles.legalized import legalized

TYPES: dict[str, np.dtype] = {
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
}
SIZES: dict[str, tuple[float, ...]] = {
    "complex<f32>": (1e-10, 1e-3, 1.0, 80.0, 1e30),
    "complex<f64>": (1e-200, 1e-10, 1e-3, 1.0, 300.0, 1e250),
}


def _log_plus_one(z: Any) -> Any:
    """numpy's own takes the logarithm of what 1 + z rounds to."""
    a, b = z.real, z.imag
    return np.log1p(a * (a + 2) + b * b) / 2 + 1j * np.angle(1 + z)


def _logistic(z: Any) -> Any:
    left = np.minimum(z.real, 0)
    return np.exp(left) / (np.exp(left) + np.exp(left - z))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "sign": lambda z: z / np.abs(z),
    "sqrt": np.sqrt,
    "rsqrt": lambda z: 1 / np.sqrt(z),
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "log_plus_one": _log_plus_one,
    "logistic": _logistic,
    "sine": np.sin,
    "cosine": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
}


def program(element: str, count: int) -> str:
    """A function for each op on `count` numbers, after pcp-legalize."""
    whole, real = (f"tensor<{count}x{e}>" for e in (element, element[8:-1]))
    return legalized("".join(_function(name, whole, real) for name in FUNCTIONS))


def _function(name: str, whole: str, real: str) -> str:
    result = real if name == "abs" else whole
    return f"""
func.func @{name}(%z: {whole}) -> {result} {{
  %0 = "stablehlo.{name}"(%z) : ({whole}) -> {result}
  return %0 : {result}
}}"""


def points(element: str, size: float, count: int, seed: int = 0) -> np.ndarray:
    """Numbers of which no part is larger than `size`."""
    parts = np.random.default_rng(seed).uniform(-size, size, (2, count))
    return (parts[0] + 1j * parts[1]).astype(TYPES[element])


def errors(name: str, z: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Of each result; 0 where the exact one is beyond the type, or next to nothing."""
    info = np.finfo(z.dtype)
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](z.astype(np.clongdouble))
        found = np.abs(got - want) / np.abs(want) / info.eps
    held = (np.abs(want) < 0.1 * info.max) & (np.abs(want) > 100 * info.tiny)
    return np.where(held, found, 0.0).astype(np.float64)
