"""What elementary functions are accurate to, op by op and type by type.

docs/accuracy.md shows this table, tests/passes/legalize/test_accuracy.py holds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

TYPES: tuple[str, ...] = ("f32", "f64", "f16", "bf16")


@dataclass(frozen=True)
class Claim:
    """The largest error of an op where its first operand is in [low, high].

    `ulp` is by element type, in units in the last place of the exact result, or of
    `least` where that is larger: where a function has roots that are no whole numbers.
    """

    op: str
    ulp: Mapping[str, float]
    low: float = -inf
    high: float = inf
    least: float = 0

    @property
    def domain(self) -> str:
        """The interval in words; empty for all numbers."""
        if self.high == inf:
            return "" if self.low == -inf else f"x >= {self.low:g}"
        if self.low == -inf:
            return f"x < {self.high:g}"
        return f"{self.low:g} <= x < {self.high:g}"

    def holds_at(self, x: np.ndarray) -> np.ndarray:
        """Where the claim speaks of `x`; NaN belongs to what has no upper end."""
        with np.errstate(invalid="ignore"):  # a NaN that signals
            wide = x.astype(np.float64)
        above, below = wide >= self.low, wide < self.high
        if self.high == inf:
            return above | np.isnan(wide)
        return above & below


def claim(
    op: str, f32: float, f64: float, f16: float, bf16: float, **where: float
) -> Claim:
    """A row of the table, types in its order."""
    ulp = dict(zip(TYPES, (f32, f64, f16, bf16), strict=True))
    return Claim(op, ulp, **where)


#: Exact, or rounded once.
ROUNDED = ("add", "subtract", "multiply", "divide", "sqrt")
EXACT = (
    *("abs", "negate", "sign", "ceil", "floor", "round_nearest_even"),
    *("round_nearest_afz", "maximum", "minimum", "remainder", "chlo.next_after"),
)

CLAIMS: tuple[Claim, ...] = (
    *(claim(op, 0, 0, 0, 0) for op in EXACT),
    *(claim(op, 0.5, 0.5, 0.5, 0.5) for op in ROUNDED),
    claim("rsqrt", 1.5, 1.5, 1.5, 0.51),
    claim("cbrt", 1.5, 1, 0.51, 0.51),
    claim("exponential", 6, 1, 0.51, 0.51),
    claim("exponential_minus_one", 6, 3, 0.51, 0.51),
    claim("log", 1, 1, 0.51, 0.51),
    claim("log_plus_one", 3, 3, 0.51, 0.51),
    claim("logistic", 3, 3, 2, 0.51),
    claim("power", 1.5, 1.5, 0.51, 0.51),
    claim("sine", 1.75, 1, 0.51, 0.51),
    claim("cosine", 1.75, 1, 0.51, 0.51),
    claim("tan", 4, 3, 0.51, 0.51),
    claim("tanh", 5, 3, 0.51, 0.51),
    claim("atan2", 3, 2, 2, 1),
    claim("chlo.acos", 5, 5, 2, 1),
    claim("chlo.acosh", 5, 5, 2, 1),
    claim("chlo.asin", 5, 5, 2, 1),
    claim("chlo.asinh", 4, 4, 8, 1),
    claim("chlo.atan", 3, 2, 2, 1),
    claim("chlo.atanh", 4, 4, 2, 1),
    claim("chlo.bessel_i1e", 16, 16, 0.51, 0.51),
    claim("chlo.cosh", 5, 3, 0.51, 0.51),
    claim("chlo.sinh", 5, 3, 0.51, 0.51),
    claim("chlo.erf", 8, 4, 0.51, 0.51),
    claim("chlo.erfc", 64, 512, 0.51, 0.51),
    claim("chlo.erf_inv", 16, 64, 0.51, 0.51),
    claim("chlo.lgamma", 32, 32, 1, 1, low=0, least=1),
    claim("chlo.lgamma", 32, 32, 1, 1, high=0, least=1),
    claim("chlo.digamma", 16, 16, 1, 1, low=0, least=1),
    claim("chlo.digamma", 16, 16, 1, 1, high=0, least=1),
)


COMPLEX_TYPES: tuple[str, ...] = ("complex<f32>", "complex<f64>")

#: By op and type: the largest error of a function of complex numbers over the size of
#: its result, in the spacing of the type's numbers at 1.
COMPLEX: dict[str, Mapping[str, float]] = {
    op: dict(zip(COMPLEX_TYPES, bounds, strict=True))
    for op, *bounds in (
        ("abs", 1.5, 1.5),
        ("sign", 1.5, 1.5),
        ("sqrt", 2, 2),
        ("rsqrt", 2.5, 2.5),
        ("exponential", 6, 2),
        ("exponential_minus_one", 6, 4),
        ("log", 1.5, 1.5),
        ("log_plus_one", 4, 4),
        ("logistic", 8, 6),
        ("sine", 6, 4),
        ("cosine", 6, 4),
        ("tan", 6, 4),
        ("tanh", 6, 4),
    )
}


def claims_of(op: str) -> tuple[Claim, ...]:
    """The rows of an op."""
    return tuple(row for row in CLAIMS if row.op == op)
