"""The remainder of floats, exact whatever the quotient, by words of their width."""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.legalize.functions.words import Number, Word, choose

#: By width: bits of a mantissa behind its first one.
FRACTION = {32: 23, 64: 52}


def remainder(x: Number, y: Number) -> Number:
    """x - y·trunc(x / y), exact: the mantissas' remainder, by long division.

    Of f32 or f64. A loop over all elements, of a round for each 8 bits (of f64, 11)
    between their exponents.
    """
    fraction, top = FRACTION[x.width], x.width - 1
    special = (1 << top) - (1 << fraction)  # an infinity
    sign = x.bits() & (1 << top)
    a, b = abs(x).bits(), abs(y).bits()
    (m, e), (n, f) = _parts(a, fraction), _parts(b, fraction)
    less = a.is_("LT", b)
    gap = choose(less, 0, e - choose(less, e, f))
    n = choose(b.is_("EQ", 0), 1, n)
    rest = _shifted_remainder(m % n, n, gap, top - fraction)
    # Two factors, as a subnormal power of two has no bits of an exponent.
    value = (rest.as_number() * 2.0**-fraction) * (f << fraction).float_bits()
    value = choose(less, abs(x), value)
    value = (value.bits() | sign).float_bits()
    none = hlo.or_(b.is_("EQ", 0), a.is_("GE", special))
    none = hlo.or_(none, b.is_("GT", special))
    return choose(none, float("nan"), value)


def _parts(bits: Word, fraction: int) -> tuple[Word, Word]:
    """Mantissa and exponent of a size, that of a subnormal number as of the least."""
    exponent, low = bits >> fraction, bits & ((1 << fraction) - 1)
    normal = exponent.is_("NE", 0)
    return choose(normal, low | (1 << fraction), low), choose(normal, exponent, 1)


def _shifted_remainder(rest: Word, divisor: Word, gap: Word, most: int) -> Word:
    """rest·2^gap modulo the divisor; `most` bits a round stay within a word."""
    types = [rest.value.type, gap.value.type]
    operands = [rest.value, gap.value]
    loop = hlo.op("while", operands, types, regions=2)

    def goes_on(_: ir.Value, left: ir.Value) -> ir.Value:
        zero = hlo.scalar(0, hlo.element_type(left))
        dims = range(len(hlo.shape_of(left)))
        longest = hlo.reduce(left, zero, dims, hlo.maximum)
        return hlo.compare("GT", longest, zero)

    def step(held: ir.Value, left: ir.Value) -> list[ir.Value]:
        gap = Word(left)
        few = choose(gap.is_("GT", most), most, gap)
        return [((Word(held) << few) % divisor).value, (gap - few).value]

    hlo.body(loop, types, goes_on, 0)
    hlo.body(loop, types, step, 1)
    return Word(loop.results[0])
