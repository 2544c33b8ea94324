"""I₀ₑ(x) = exp(−|x|)·I₀(x), which CHLO lacks and the derivative of I₁ₑ needs.

Two Chebyshev series, one up to |x| = 8 and one in 1/|x| beyond. Their coefficients
are computed here, from the integral (1/π) ∫₀^π exp(|x|(cos t − 1)) dt by the
trapezoidal rule, whose error for a periodic function falls faster than any power
of the number of points.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value

#: Where one series ends and the other begins.
SPLIT = 8.0


def _integral(x: np.ndarray) -> np.ndarray:
    """I₀ₑ of positive numbers up to 1e6, to double precision."""
    t = (np.arange(8192) + 0.5) * np.pi / 8192
    return np.exp(x[:, None] * (np.cos(t) - 1.0)).mean(1)


def _near(u: np.ndarray) -> np.ndarray:
    """I₀ₑ on [0, 8], with u in [−1, 1]."""
    return _integral((u + 1.0) * SPLIT / 2)


def _far(u: np.ndarray) -> np.ndarray:
    """√x·I₀ₑ beyond 8, with x = 16 / (u + 1)."""
    x = np.minimum(2 * SPLIT / (u + 1.0), 1e6)
    return np.sqrt(x) * _integral(x)


@cache
def _coefficients(of: Callable[[np.ndarray], np.ndarray], count: int) -> list[float]:
    nodes = np.polynomial.chebyshev.chebpts1(count)
    fitted = np.polynomial.chebyshev.chebfit(nodes, of(nodes), count - 1)
    return [float(c) for c in fitted]


def _series(u: Value, coefficients: list[float]) -> Value:
    """Σ c_k T_k(u), by Clenshaw's recurrence."""
    twice = hlo.add(u, u)
    ahead = behind = hlo.zeros(u.type)
    for c in coefficients[:0:-1]:
        term = hlo.subtract(hlo.multiply(twice, ahead), behind)
        ahead, behind = hlo.add(term, hlo.constant_like(u, c)), ahead
    last = hlo.subtract(hlo.multiply(u, ahead), behind)
    return hlo.add(last, hlo.constant_like(u, coefficients[0]))


def bessel_i0e(x: Value) -> Value:
    """I₀ₑ(x), in f64 for f64 and in f32 for all else."""
    given = hlo.element_type(x)
    is_double = isinstance(given, ir.F64Type)
    x = hlo.abs(hlo.convert(x, given if is_double else ir.F32Type.get()))
    near, far = (30, 28) if is_double else (18, 10)
    one, split = hlo.constant_like(x, 1.0), hlo.constant_like(x, SPLIT)
    beyond = hlo.compare("GT", x, split)
    inner = hlo.select(beyond, split, x)
    outer = hlo.select(beyond, x, split)
    low = _series(
        hlo.subtract(hlo.multiply(inner, hlo.constant_like(x, 2 / SPLIT)), one),
        _coefficients(_near, near),
    )
    inverse = hlo.divide(hlo.constant_like(x, 2 * SPLIT), outer)
    high = hlo.multiply(
        _series(hlo.subtract(inverse, one), _coefficients(_far, far)),
        hlo.rsqrt(outer),
    )
    return hlo.convert(hlo.select(beyond, high, low), given)


def epsilon(element: ir.Type) -> float:
    """The step of numbers around 1."""
    widths = {16: 2.0**-10, 32: 2.0**-23, 64: 2.0**-52}
    if isinstance(element, ir.BF16Type):
        return 2.0**-7
    return widths.get(ir.FloatType(element).width, 2.0**-3)
