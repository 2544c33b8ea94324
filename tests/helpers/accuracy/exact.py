"""Exact values of elementary functions: f64 for narrower types, mpmath for f64.

A function in f64 is that of numpy or scipy, which follow C99, Annex F, at special
values; where they lose the sign of a zero, it is put back. For f64 itself, mpmath's
value at 200 bits is kept as a sum of two doubles.
"""

from collections.abc import Callable, Mapping

import mpmath
import numpy as np
import scipy.special as special
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
BITS = 200


def _odd(function: Callable) -> Callable:
    """The zero of an odd function has the sign of its operand."""
    return lambda x: np.where(x == 0, x, function(x))


def _away_from_zero(x: Doubles) -> Doubles:
    half = np.trunc(x) + np.where(abs(x - np.trunc(x)) >= 0.5, np.sign(x), 0)
    return np.copysign(half, x)


def _larger(x: Doubles, y: Doubles) -> Doubles:
    """IEEE 754 `maximum`: -0 is below 0."""
    both = (x == 0) & (y == 0)
    return np.where(both, np.where(np.signbit(x), y, x), np.maximum(x, y))


IN_DOUBLES: Mapping[str, Callable] = {
    "abs": np.abs,
    "negate": np.negative,
    "sign": _odd(np.sign),
    "ceil": np.ceil,
    "floor": np.floor,
    "round_nearest_even": np.rint,
    "round_nearest_afz": _away_from_zero,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "cbrt": np.cbrt,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": special.expit,
    "sine": np.sin,
    "cosine": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "chlo.acos": np.arccos,
    "chlo.acosh": np.arccosh,
    "chlo.asin": np.arcsin,
    "chlo.asinh": np.arcsinh,
    "chlo.atan": np.arctan,
    "chlo.atanh": np.arctanh,
    "chlo.bessel_i1e": _odd(special.i1e),
    "chlo.cosh": np.cosh,
    "chlo.digamma": lambda x: np.where(x == 0, np.nan, special.psi(x)),
    "chlo.erf": special.erf,
    "chlo.erfc": special.erfc,
    "chlo.erf_inv": _odd(special.erfinv),
    "chlo.lgamma": lambda x: np.where(np.isinf(x), np.inf, special.gammaln(x)),
    "chlo.sinh": np.sinh,
    "atan2": np.arctan2,
    "power": np.power,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "remainder": np.fmod,
    "maximum": _larger,
    "minimum": lambda x, y: -_larger(-x, -y),
}
BINARY = frozenset(
    "atan2 power add subtract multiply divide remainder maximum minimum "
    "chlo.next_after".split()
)
ODD = frozenset(
    ("sine", "tan", "tanh", "cbrt", "chlo.erf", "chlo.asinh", "chlo.atan", "chlo.sinh")
)
EVEN = frozenset(("cosine", "chlo.cosh"))
#: What numpy rounds once, or gives exactly: its answer in f64 is the exact one.
ROUNDED_ONCE = frozenset(
    "abs negate sign ceil floor round_nearest_even round_nearest_afz maximum minimum "
    "remainder".split()
)

IN_MPMATH: Mapping[str, Callable] = {
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "exponential": mpmath.exp,
    "exponential_minus_one": mpmath.expm1,
    "log": mpmath.log,
    "log_plus_one": mpmath.log1p,
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)),
    "sine": mpmath.sin,
    "cosine": mpmath.cos,
    "tan": mpmath.tan,
    "tanh": mpmath.tanh,
    "chlo.acos": mpmath.acos,
    "chlo.acosh": mpmath.acosh,
    "chlo.asin": mpmath.asin,
    "chlo.asinh": mpmath.asinh,
    "chlo.atan": mpmath.atan,
    "chlo.atanh": mpmath.atanh,
    "chlo.bessel_i1e": lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)),
    "chlo.cosh": mpmath.cosh,
    "chlo.digamma": mpmath.digamma,
    "chlo.erf": mpmath.erf,
    "chlo.erfc": mpmath.erfc,
    "chlo.erf_inv": mpmath.erfinv,
    "chlo.lgamma": lambda x: mpmath.re(mpmath.loggamma(x)),
    "chlo.sinh": mpmath.sinh,
    "atan2": mpmath.atan2,
    "power": mpmath.power,
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
}


def exact(op: str, operands: list[np.ndarray]) -> tuple[Doubles, Doubles]:
    """The value as a double, and what is left of it: zero but for operands in f64."""
    with np.errstate(all="ignore"):
        if op == "chlo.next_after":
            return _neighbour(*operands), np.zeros(operands[0].shape)
        wide = [x.astype(np.float64) for x in operands]
        value = np.asarray(IN_DOUBLES[op](*wide))
    rest = np.zeros_like(value)
    if operands[0].dtype == np.float64 and op not in ROUNDED_ONCE:
        _refine(op, wide, value, rest)
    return value, rest


def _refine(op: str, x: list[Doubles], value: Doubles, rest: Doubles) -> None:
    """mpmath's values in place of numpy's, where they are finite and not zero."""
    plain = np.isfinite(value) & (value != 0) & np.all(np.isfinite(x), axis=0)
    plain &= np.all(np.array(x) != 0, axis=0)  # mpmath has no -0
    with mpmath.workprec(BITS):
        for i in np.flatnonzero(plain):
            found = IN_MPMATH[op](*(mpmath.mpf(float(v[i])) for v in x))
            value[i] = float(found)
            if np.isfinite(value[i]):
                rest[i] = float(found - mpmath.mpf(float(value[i])))


def _neighbour(x: np.ndarray, y: np.ndarray) -> Doubles:
    """By bits, for types whose `nextafter` numpy does not have."""
    word = np.dtype(f"i{x.dtype.itemsize}")
    bits = x.view(word)
    up = np.where((y > x) == (x > 0), bits + 1, bits - 1).astype(word)
    least = np.where(y > 0, 1, np.iinfo(word).min + 1).astype(word)
    found = np.where(x == 0, least, up).view(x.dtype).astype(np.float64)
    found = np.where(x == y, y.astype(np.float64), found)
    return np.where(np.isnan(x) | np.isnan(y), np.nan, found)
