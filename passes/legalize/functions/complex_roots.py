"""The square root of a complex number, and its inverse, by parts that never overflow.

Kahan, Branch Cuts for Complex Elementary Functions (1987): the root lies in the right
half-plane, and on the cut below zero the sign of the imaginary part, -0 too, says on
which side.
"""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.legalize.functions.words import is_negative

Value = ir.Value
Parts = tuple[Value, Value]


@dataclass(frozen=True)
class _Scaled:
    """z = m (p + q i) for the larger part m; its size is m·`norm`, with `norm` ≤ √2.

    `root` are the parts of √(|p| + |q| i).
    """

    large: Value
    norm: Value
    root: Parts

    @classmethod
    def of(cls, a: Value, b: Value) -> "_Scaled":
        sizes = hlo.abs(a), hlo.abs(b)
        large = hlo.maximum(*sizes)
        p, q = (hlo.divide(v, large) for v in sizes)
        norm = hlo.sqrt(hlo.add(hlo.multiply(p, p), hlo.multiply(q, q)))
        half = hlo.constant_like(p, 0.5)
        real = hlo.sqrt(hlo.multiply(half, hlo.add(p, norm)))
        return cls(large, norm, (real, hlo.divide(hlo.multiply(half, q), real)))


def square_root(a: Value, b: Value) -> Parts:
    """±0 + bi for z = ±0 + bi with b = ±0; ∞ + bi wherever b is infinite."""
    scaled = _Scaled.of(a, b)
    root = hlo.sqrt(scaled.large)
    real, imag = _turned(a, b, [hlo.multiply(root, v) for v in scaled.root])
    zero = hlo.compare("EQ", scaled.large, hlo.zeros(a.type))
    infinite_a, infinite_b = (_is_infinite(v) for v in (a, b))
    # Of ∞ + bi it is ∞ + 0i, and of -∞ + bi it is 0 + ∞i; the 0 is NaN where b is.
    edge = _turned(a, b, [hlo.abs(a), _nothing(b)])
    real, imag = (
        hlo.select(infinite_a, e, hlo.select(zero, z, v))
        for e, z, v in zip(edge, (hlo.abs(a), b), (real, imag), strict=True)
    )
    return hlo.select(infinite_b, hlo.abs(b), real), hlo.select(infinite_b, b, imag)


def reciprocal_root(a: Value, b: Value) -> Parts:
    """The conjugate of √z over |z|; ∞ + NaN i of 0, and ±0 of what is infinite."""
    scaled = _Scaled.of(a, b)
    below = hlo.multiply(hlo.sqrt(scaled.large), scaled.norm)
    real, imag = _turned(a, b, [hlo.divide(v, below) for v in scaled.root])
    zero = hlo.compare("EQ", scaled.large, hlo.zeros(a.type))
    infinite = hlo.or_(_is_infinite(a), _is_infinite(b))
    none = hlo.zeros(a.type)
    infinity, unknown = (hlo.constant_like(a, float(x)) for x in ("inf", "nan"))
    real = hlo.select(infinite, none, hlo.select(zero, infinity, real))
    imag = hlo.select(infinite, _signed_by(b, none), hlo.select(zero, unknown, imag))
    return real, hlo.negate(imag)


def _turned(a: Value, b: Value, root: list[Value]) -> Parts:
    """The root of |a| + |b|i as that of a + bi."""
    real, imag = root
    left = hlo.compare("LT", a, hlo.zeros(a.type))
    size = hlo.select(left, real, imag)
    return hlo.select(left, imag, real), _signed_by(b, size)


def _signed_by(b: Value, size: Value) -> Value:
    return hlo.select(is_negative(b), hlo.negate(size), size)


def _is_infinite(x: Value) -> Value:
    return hlo.compare("EQ", hlo.abs(x), hlo.constant_like(x, float("inf")))


def _nothing(x: Value) -> Value:
    """0, and NaN of NaN."""
    known = hlo.compare("EQ", x, x)
    return hlo.select(known, hlo.zeros(x.type), x)
