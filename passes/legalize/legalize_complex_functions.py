"""Functions of complex numbers that IREE computes too loosely, by their parts.

Its kernels take sines with too few digits of π (see legalize_trigonometry.py), square
parts that overflow, and lose the real line: 0·∞ where one factor is exactly 0.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.legalize.functions import complex_roots
from pcp.passes.legalize.legalize_functions import angle
from pcp.passes.legalize.legalize_trigonometry import sine_and_cosine

Value = ir.Value
Values = Sequence[Value]


def absolute(op: ir.Operation) -> Values | None:
    """√(a² + b²) = m √(1 + (n/m)²) for the larger part m; ∞ where one part is."""
    (z,) = op.operands
    if not hlo.is_complex(hlo.element_type(z)):
        return None
    a, b = hlo.abs(hlo.real(z)), hlo.abs(hlo.imag(z))
    large, small = hlo.maximum(a, b), hlo.minimum(a, b)
    ratio = hlo.divide(small, large)
    one = hlo.constant_like(ratio, 1)
    root = hlo.sqrt(hlo.add(one, hlo.multiply(ratio, ratio)))
    zero = hlo.compare("EQ", large, hlo.zeros(large.type))
    size = hlo.select(zero, large, hlo.multiply(large, root))
    infinity = hlo.constant_like(large, float("inf"))
    parts = (hlo.compare("EQ", part, infinity) for part in (a, b))
    return [hlo.select(hlo.or_(*parts), infinity, size)]


def divide(op: ir.Operation) -> Values | None:
    """(ac + bd + i (bc - ad)) / (c² + d²), with c and d over twice the larger one.

    By zero it is that of each part by c, as in C99, Annex G; by infinity, 0.
    """
    x, y = op.operands
    if not hlo.is_complex(hlo.element_type(x)):
        return None
    (a, b), (c, d) = ((hlo.real(v), hlo.imag(v)) for v in (x, y))
    large = hlo.maximum(hlo.abs(c), hlo.abs(d))
    half = hlo.constant_like(c, 0.5)
    p, q = (hlo.multiply(half, hlo.divide(v, large)) for v in (c, d))
    norm = hlo.add(hlo.multiply(p, p), hlo.multiply(q, q))
    norm = hlo.add(norm, norm)
    real = hlo.add(hlo.multiply(a, p), hlo.multiply(b, q))
    imag = hlo.subtract(hlo.multiply(b, p), hlo.multiply(a, q))
    zero = hlo.compare("EQ", large, hlo.zeros(large.type))
    same = hlo.compare("EQ", hlo.add(large, large), large)  # of 0 and of infinity
    edge = hlo.select(zero, c, large)
    parts = (
        hlo.select(same, hlo.divide(v, edge), hlo.divide(hlo.divide(n, large), norm))
        for v, n in ((a, real), (b, imag))
    )
    return [hlo.complex_(*parts)]


def log(op: ir.Operation) -> Values | None:
    """log|z| + i arg z."""
    if (parts := _parts(op)) is None:
        return None
    return [hlo.complex_(*_logarithm(*parts))]


def log_plus_one(op: ir.Operation) -> Values | None:
    """½ log(1 + (2a + a² + b²)) + i arg(1 + z); far from |1 + z| = 1 as `log`."""
    if (parts := _parts(op)) is None:
        return None
    a, b = parts
    half, one, two = (hlo.constant_like(a, x) for x in (0.5, 1, 2))
    moved = hlo.add(one, a)
    size, turn = _logarithm(moved, b)
    rest = hlo.add(hlo.multiply(a, hlo.add(a, two)), hlo.multiply(b, b))
    near = hlo.compare("LE", hlo.abs(rest), half)
    small = hlo.multiply(half, hlo.log_plus_one(rest))
    return [hlo.complex_(hlo.select(near, small, size), turn)]


def logistic(op: ir.Operation) -> Values | None:
    """1 / (1 + w) where a ≥ 0, else w / (1 + w), for w = e^-z or eᶻ, at most 1 in size.

    Re(1 + w) = 2 cos²(b/2) + (e^-|a| - 1) cos b, which keeps its digits at the poles.
    """
    if (parts := _parts(op)) is None:
        return None
    a, b = parts
    zero, two = hlo.zeros(a.type), hlo.constant_like(a, 2)
    fall = hlo.negate(hlo.abs(a))
    size, less = hlo.exponential(fall), hlo.exponential_minus_one(fall)
    sine, cosine = sine_and_cosine(b)
    _, half = sine_and_cosine(hlo.multiply(b, hlo.constant_like(b, 0.5)))
    turned = hlo.multiply(two, hlo.multiply(half, half))
    real = hlo.add(turned, hlo.multiply(less, cosine))
    imag = _real_line(b, hlo.multiply(size, sine))
    below = hlo.add(hlo.multiply(real, real), hlo.multiply(imag, imag))
    left = hlo.multiply(size, hlo.add(cosine, size))
    real = hlo.select(hlo.compare("GE", a, zero), real, left)
    return [hlo.complex_(*(hlo.divide(part, below) for part in (real, imag)))]


def sqrt(op: ir.Operation) -> Values | None:
    """√z with the larger part taken out of it, and its branch cut by the sign of b."""
    if (parts := _parts(op)) is None:
        return None
    return [hlo.complex_(*complex_roots.square_root(*parts))]


def rsqrt(op: ir.Operation) -> Values | None:
    """1/√z, likewise."""
    if (parts := _parts(op)) is None:
        return None
    return [hlo.complex_(*complex_roots.reciprocal_root(*parts))]


def power(op: ir.Operation) -> Values | None:
    """e^(w log z); 0ʷ is 0 for Re w > 0, and 1 for w = 0.

    Of real z ≥ 0 and w it is real, as XLA's: 0·∞ in the turn would make NaN of ∞ʷ.
    """
    z, w = op.operands
    if not hlo.is_complex(hlo.element_type(z)):
        return None
    (a, b), (c, d) = ((hlo.real(v), hlo.imag(v)) for v in (z, w))
    size, turn = _logarithm(a, b)
    growth = hlo.subtract(hlo.multiply(c, size), hlo.multiply(d, turn))
    zero, one = hlo.zeros(c.type), hlo.constant_like(c, 1)
    flat = hlo.and_(hlo.compare("EQ", b, zero), hlo.compare("EQ", d, zero))
    flat = hlo.and_(flat, hlo.compare("GE", a, zero))
    angle = hlo.add(hlo.multiply(d, size), hlo.multiply(c, turn))
    sine, cosine = sine_and_cosine(hlo.select(flat, zero, angle))
    no_base, no_growth = (
        hlo.and_(hlo.compare("EQ", u, zero), hlo.compare("EQ", v, zero))
        for u, v in ((a, b), (c, d))
    )
    no_base = hlo.and_(no_base, hlo.compare("GT", c, zero))
    real, imag = (
        hlo.select(hlo.or_(no_base, no_growth), zero, _grown(growth, v))
        for v in (cosine, sine)
    )
    real, imag = hlo.select(no_growth, one, real), hlo.select(flat, zero, imag)
    return [hlo.complex_(real, imag)]


def _logarithm(a: Value, b: Value) -> tuple[Value, Value]:
    """log √(a² + b²) by the larger part, and the angle."""
    sizes = hlo.abs(a), hlo.abs(b)
    large, small = hlo.maximum(*sizes), hlo.minimum(*sizes)
    ratio = hlo.divide(small, large)
    rest = hlo.log_plus_one(hlo.multiply(ratio, ratio))
    rest = hlo.multiply(hlo.constant_like(rest, 0.5), rest)
    same = hlo.compare("EQ", hlo.add(large, large), large)  # of 0 and of infinity
    size = hlo.log(large)
    return hlo.select(same, size, hlo.add(size, rest)), angle(b, a)


def exponential(op: ir.Operation) -> Values | None:
    """eᵃ cos b + i eᵃ sin b; real where b is 0."""
    if (parts := _parts(op)) is None:
        return None
    a, b = parts
    sine, cosine = sine_and_cosine(b)
    return [hlo.complex_(_grown(a, cosine), _real_line(b, _grown(a, sine)))]


def exponential_minus_one(op: ir.Operation) -> Values | None:
    """(eᵃ - 1) cos b - 2 sin²(b/2) + i eᵃ sin b: no digits lost near 0."""
    if (parts := _parts(op)) is None:
        return None
    a, b = parts
    sine, cosine = sine_and_cosine(b)
    half, _ = sine_and_cosine(hlo.multiply(b, hlo.constant_like(b, 0.5)))
    versine = hlo.multiply(hlo.constant_like(b, 2), hlo.multiply(half, half))
    real = hlo.multiply(hlo.exponential_minus_one(a), cosine)
    real = hlo.subtract(real, versine)
    large = hlo.compare("GT", a, hlo.constant_like(a, 80))
    real = hlo.select(large, _grown(a, cosine), real)
    return [hlo.complex_(real, _real_line(b, _grown(a, sine)))]


def sine(op: ir.Operation) -> Values | None:
    """sin a cosh b + i cos a sinh b."""
    if (parts := _parts(op)) is None:
        return None
    a, b = parts
    s, c = sine_and_cosine(a)
    return [hlo.complex_(_cosh_times(b, s), _sinh_times(b, c))]


def cosine(op: ir.Operation) -> Values | None:
    """cos a cosh b - i sin a sinh b."""
    if (parts := _parts(op)) is None:
        return None
    a, b = parts
    s, c = sine_and_cosine(a)
    return [hlo.complex_(_cosh_times(b, c), hlo.negate(_sinh_times(b, s)))]


def tan(op: ir.Operation) -> Values | None:
    """By the parts of `_tangent`."""
    if (parts := _parts(op)) is None:
        return None
    return [hlo.complex_(*_tangent(*parts))]


def tanh(op: ir.Operation) -> Values | None:
    """-i tan(iz): with the parts exchanged."""
    if (parts := _parts(op)) is None:
        return None
    a, b = parts
    imag, real = _tangent(b, a)
    return [hlo.complex_(real, imag)]


def _parts(op: ir.Operation) -> tuple[Value, Value] | None:
    (z,) = op.operands
    if not hlo.is_complex(hlo.element_type(z)):
        return None
    return hlo.real(z), hlo.imag(z)


def _real_line(b: Value, value: Value) -> Value:
    """0 keeps its sign, whatever it is multiplied with."""
    return hlo.select(hlo.compare("EQ", b, hlo.zeros(b.type)), b, value)


def _grown(a: Value, factor: Value) -> Value:
    """eᵃ·factor, which may be finite where eᵃ is not."""
    half = hlo.exponential(hlo.multiply(a, hlo.constant_like(a, 0.5)))
    large = hlo.compare("GT", a, hlo.constant_like(a, 80))
    split = hlo.multiply(hlo.multiply(half, factor), half)
    return hlo.select(large, split, hlo.multiply(hlo.exponential(a), factor))


def _halves(b: Value, factor: Value) -> tuple[Value, Value]:
    """factor·e^|b|/2 and factor·e^-|b|/2."""
    size = hlo.abs(b)
    half = hlo.multiply(factor, hlo.constant_like(factor, 0.5))
    falling = hlo.multiply(half, hlo.exponential(hlo.negate(size)))
    return _grown(size, half), falling


def _cosh_times(b: Value, factor: Value) -> Value:
    zero = hlo.compare("EQ", factor, hlo.zeros(factor.type))
    return hlo.select(zero, factor, hlo.add(*_halves(b, factor)))


def _sinh_times(b: Value, factor: Value) -> Value:
    """Below 1 by e^b - 1, which keeps the digits of a small b."""
    far = _signed_like(b, hlo.subtract(*_halves(b, factor)))
    u = hlo.exponential_minus_one(b)
    one = hlo.constant_like(u, 1)
    twice = hlo.add(u, hlo.divide(u, hlo.add(u, one)))
    near = hlo.multiply(hlo.multiply(twice, hlo.constant_like(u, 0.5)), factor)
    is_near = hlo.compare("LT", hlo.abs(b), one)
    return _real_line(b, hlo.select(is_near, near, far))


def _tangent(a: Value, b: Value) -> tuple[Value, Value]:
    """Real and imaginary part of tan(a + bi).

    Over cos²a + sinh²b, the parts are sin a cos a and sinh b cosh b; both scaled by
    4e^-2|b|, which leaves nothing that overflows.
    """
    s, c = sine_and_cosine(a)
    two = hlo.multiply(hlo.abs(b), hlo.constant_like(b, -2))
    falling = hlo.exponential(two)
    less = hlo.negate(hlo.exponential_minus_one(two))  # 1 - e^-2|b|
    four = hlo.multiply(falling, hlo.constant_like(b, 4))
    below = hlo.multiply(four, hlo.multiply(c, c))
    below = hlo.add(below, hlo.multiply(less, less))
    real = hlo.divide(hlo.multiply(four, hlo.multiply(s, c)), below)
    more = hlo.add(falling, hlo.constant_like(b, 1))
    imag = hlo.divide(hlo.multiply(less, more), below)
    return real, _real_line(b, _signed_like(b, imag))


def _signed_like(b: Value, value: Value) -> Value:
    """-value where b < 0."""
    negative = hlo.compare("LT", b, hlo.zeros(b.type))
    return hlo.select(negative, hlo.negate(value), value)
