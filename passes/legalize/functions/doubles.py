"""Functions of f64 that IREE has no code for, or computes to few digits.

Its exponential function and logarithm of f64 are good to an ulp; eˣ - 1 and log(1 + x)
it computes as they read, which leaves no digit of a small x. Here they are rid of the
rounding of eˣ and of 1 + x: W. Kahan, in the HP-15C Advanced Functions Handbook (1982).
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.legalize.functions.words import Number, Word, choose

FEW = 11  # bits by which 53 of them can be shifted within a word of 64


def exponential(x: Number) -> Number:
    """IREE's own."""
    return Number(hlo.exponential(x.value))


def logarithm(x: Number) -> Number:
    """IREE's own."""
    return Number(hlo.log(x.value))


def exponential_minus_one(x: Number) -> Number:
    """(u - 1)·x / log u at u = eˣ: what u is off, its logarithm is off alike."""
    u = exponential(x)
    value = (u - 1.0) * x / logarithm(u)
    value = choose(x.is_("LT", -40.0), -1.0, choose(x.is_("GT", 40.0), u, value))
    return choose(u.is_("EQ", 1.0), x, value)


def log_plus_one(x: Number) -> Number:
    """log u·x / (u - 1) at u = 1 + x."""
    u = x + 1.0
    value = choose(u.is_("EQ", float("inf")), u, logarithm(u) * (x / (u - 1.0)))
    return choose(u.is_("EQ", 1.0), x, value)


def tanh(x: Number) -> Number:
    """t / (t + 2) at t = e^2|x| - 1; from 1 on, 1 - 2 / (e^2|x| + 1)."""
    size = abs(x)
    t = exponential_minus_one(size * 2.0)
    far = 1.0 - 2.0 / (exponential(size * 2.0) + 1.0)
    value = choose(size.is_("GE", 1.0), far, t / (t + 2.0))
    return x.known(value.signed_like(x))


def cbrt(x: Number) -> Number:
    """e^(log|x| / 3) and a step of Newton's; ±0 and ±∞ are their own."""
    size = abs(x)
    root = exponential(logarithm(size) * (1.0 / 3.0))
    root = root - (root - size / (root * root)) * (1.0 / 3.0)
    own = (size + size).is_("EQ", size)
    return x.known(choose(own, x, root.signed_like(x)))


def ceil(x: Number) -> Number:
    """-⌊-x⌋: the generic processor has a function of the C runtime for it."""
    return -Number(hlo.op("floor", [(-x).value], [x.value.type]).result)


def remainder(x: Number, y: Number) -> Number:
    """x - y·trunc(x / y), exact: the mantissas' remainder, by long division.

    A loop over all elements, of a round for each 11 bits between their exponents.
    """
    sign = x.bits() & (1 << 63)
    a, b = abs(x).bits(), abs(y).bits()
    (m, e), (n, f) = _parts(a), _parts(b)
    less = a.is_("LT", b)
    gap = choose(less, 0, e - choose(less, e, f))
    n = choose(b.is_("EQ", 0), 1, n)
    rest = _shifted_remainder(m % n, n, gap)
    # Two factors, as a subnormal power of two has no bits of an exponent.
    value = (rest.as_number() * 2.0**-52) * (f << 52).float_bits()
    value = choose(less, abs(x), value)
    value = (value.bits() | sign).float_bits()
    none = hlo.or_(b.is_("EQ", 0), a.is_("GE", 0x7FF << 52))
    none = hlo.or_(none, b.is_("GT", 0x7FF << 52))
    return choose(none, float("nan"), value)


def _parts(bits: Word) -> tuple[Word, Word]:
    """Mantissa and exponent of a size, that of a subnormal number as of the least."""
    exponent, low = bits >> 52, bits & ((1 << 52) - 1)
    normal = exponent.is_("NE", 0)
    return choose(normal, low | (1 << 52), low), choose(normal, exponent, 1)


def _shifted_remainder(rest: Word, divisor: Word, gap: Word) -> Word:
    """rest·2^gap modulo the divisor."""
    types = [rest.value.type, gap.value.type]
    operands = [rest.value, gap.value]
    loop = hlo.op("while", operands, types, regions=2)

    def goes_on(_: ir.Value, left: ir.Value) -> ir.Value:
        zero = hlo.scalar(0, hlo.element_type(left))
        dims = range(len(hlo.shape_of(left)))
        most = hlo.reduce(left, zero, dims, hlo.maximum)
        return hlo.compare("GT", most, zero)

    def step(held: ir.Value, left: ir.Value) -> list[ir.Value]:
        gap = Word(left)
        few = choose(gap.is_("GT", FEW), FEW, gap)
        return [((Word(held) << few) % divisor).value, (gap - few).value]

    hlo.body(loop, types, goes_on, 0)
    hlo.body(loop, types, step, 1)
    return Word(loop.results[0])
