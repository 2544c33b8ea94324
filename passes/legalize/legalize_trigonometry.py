"""Sine, cosine and tangent of f32, to about an ulp at every finite x.

IREE's kernels reduce x with too few digits of π: they err by 1e-4 at 2,000, and take
neither the sign nor the smallest numbers through. Here the reduction is that of Payne
and Hanek ("Radian reduction for trigonometric arguments", 1983): |x| is m·2ᵉ with m of
24 bits; of m·2ᵉ·2/π, counted in quarter turns, the bits above 4 do not matter, so 96
bits of 2/π from a place that e gives make 64 bits of the angle. That is integers of 32
bits alone: no f64, which GPUs lack, no table to gather from, and nothing that a fused
multiply-add could change. No x of f32 comes nearer to a multiple of π/2 than 2⁻³⁰ of a
quarter turn, so the angle keeps its 24 digits there, too.

The kernel works on |x|, and signs are put on as bits: odd and even to the bit.
Polynomials: Cephes, `sinf.c` (S. Moshier).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import pi

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.legalize.functions.words import Word, choose

Value = ir.Value
Values = Sequence[Value]

# 26 zeros, then the bits of 2/π = 0.1010001011...
TWO_OVER_PI = (
    0x00000028,
    0xBE60DB93,
    0x91054A7F,
    0x09D5F47D,
    0x4D377036,
    0xD8A5664F,
    0x10E4107F,
)
# The bits of π/4, from where on x is reduced, and the exponent there.
REDUCED_FROM = 0x3F490FDB
FIRST_EXPONENT = 126
# The bits of 2⁻¹², below which x is its own sine and tangent: where a target takes
# subnormal numbers for zero, they pass here.
OWN_SINE = 0x39800000
QUARTER = 201 / 128  # π/2 to 8 bits
SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def sine(op: ir.Operation) -> Values | None:
    """Odd, by quadrants; None where it is not computed in f32."""
    return _in_f32(op, lambda angle: angle.sine())


def cosine(op: ir.Operation) -> Values | None:
    """Even, by quadrants; None where it is not computed in f32."""
    return _in_f32(op, lambda angle: angle.cosine())


def tan(op: ir.Operation) -> Values | None:
    """Odd: the sine over the cosine; None where it is not computed in f32."""
    return _in_f32(op, lambda angle: angle.tangent())


def sine_and_cosine(x: Value) -> tuple[Value, Value]:
    """Of a tensor of floats; those wider than f32 are left to IREE."""
    if ir.FloatType(hlo.element_type(x)).width > 32:
        return hlo.sine(x), hlo.cosine(x)
    angle = _Angle(x)
    return angle.sine(), angle.cosine()


def _in_f32(op: ir.Operation, function: Callable[["_Angle"], Value]) -> Values | None:
    element = hlo.element_type(op.result)
    if not hlo.is_float(element) or ir.FloatType(element).width > 32:
        return None
    wide = hlo.convert(op.operands[0], ir.F32Type.get())
    return [hlo.convert(function(_Angle(wide)), element)]


class _Angle:
    """x as a number of quarter turns and a rest in [-π/4, π/4]."""

    def __init__(self, x: Value) -> None:
        self._x = x
        self._word = hlo.like(x, element=ir.IntegerType.get_unsigned(32))
        bits = Word(hlo.bitcast_convert(x, self._word))
        self.sign = bits & 0x80000000
        size = bits & 0x7FFFFFFF
        self._tiny = size.is_("LT", OWN_SINE)
        self._finite = size.is_("LT", 0x7F800000)
        near = size.is_("LT", REDUCED_FROM)
        high, low = _turns(size)
        self.quarters = choose(near, size.like(0), (high + (1 << 29)) >> 30)
        self.rest = hlo.select(near, self._float(size), _rest(high, low, x.type))
        self._square = hlo.multiply(self.rest, self.rest)

    def sine(self) -> Value:
        """Of x."""
        value = self._by_quarter(self.quarters, self.sign)
        return self._known(hlo.select(self._tiny, self._x, value))

    def cosine(self) -> Value:
        """Of x: the sine a quarter turn on, whatever the sign of x."""
        return self._known(self._by_quarter(self.quarters + 1, self.sign.like(0)))

    def tangent(self) -> Value:
        """Of x: ±sin/cos or ±cos/sin of the rest, negative in odd quarters."""
        odd = self._is_odd(self.quarters)
        sine, cosine = self._sine_of_rest(), self._cosine_of_rest()
        value = hlo.divide(hlo.select(odd, cosine, sine), hlo.select(odd, sine, cosine))
        value = self._signed(value, (self.quarters << 31) ^ self.sign)
        return self._known(hlo.select(self._tiny, self._x, value))

    def _by_quarter(self, quarters: Word, sign: Word) -> Value:
        """sin(rest + quarters·π/2), negated where `sign` says so."""
        odd = self._is_odd(quarters)
        value = hlo.select(odd, self._cosine_of_rest(), self._sine_of_rest())
        return self._signed(value, ((quarters & 2) << 30) ^ sign)

    def _is_odd(self, quarters: Word) -> Value:
        return (quarters & 1).is_("NE", 0)

    def _sine_of_rest(self) -> Value:
        cube = hlo.multiply(self.rest, self._square)
        return hlo.add(self.rest, hlo.multiply(cube, _horner(self._square, SINE)))

    def _cosine_of_rest(self) -> Value:
        half = hlo.multiply(self._square, hlo.constant_like(self._square, 0.5))
        head = hlo.subtract(hlo.constant_like(half, 1), half)
        fourth = hlo.multiply(self._square, self._square)
        return hlo.add(head, hlo.multiply(fourth, _horner(self._square, COSINE)))

    def _float(self, bits: Word) -> Value:
        return hlo.bitcast_convert(bits.value, hlo.like(bits.value, element=_f32()))

    def _signed(self, value: Value, sign: Word) -> Value:
        return self._float(Word(hlo.bitcast_convert(value, self._word)) ^ sign)

    def _known(self, value: Value) -> Value:
        """NaN at infinities and NaN."""
        nan = hlo.constant_like(value, float("nan"))
        return hlo.select(self._finite, value, nan)


def _f32() -> ir.Type:
    return ir.F32Type.get()


def _horner(x: Value, coefficients: Sequence[float]) -> Value:
    value = hlo.constant_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = hlo.add(hlo.multiply(value, x), hlo.constant_like(x, c))
    return value


def _turns(size: Word) -> tuple[Word, Word]:
    """|x|·2/π modulo 4 in units of 2⁻⁶², as two words; `size` is |x|'s bits."""
    mantissa = (size & 0x7FFFFF) | 0x800000
    first, second, third = _window((size >> 23) - FIRST_EXPONENT)
    top, bottom = _product(mantissa, second)
    low = bottom + _product_top(mantissa, third)
    carry = choose(low.is_("LT", bottom), low.like(1), low.like(0))
    return mantissa * first + top + carry, low


def _window(place: Word) -> tuple[Word, Word, Word]:
    """96 bits of `TWO_OVER_PI` from bit `place` on, which is at most 128.

    Steps of 64 and of 32 bits choose words, the rest is shifted; it may be 32.
    """
    words = [place.like(w) for w in TWO_OVER_PI]
    for step in (2, 1):
        far = place.is_("GE", 32 * step)
        pairs = zip(words[step:], words, strict=False)
        words = [choose(far, later, sooner) for later, sooner in pairs]
        place = choose(far, place - 32 * step, place)
    back = place.like(32) - place
    pairs = pairwise(words)
    first, second, third = ((a << place) | (b >> back) for a, b in pairs)
    return first, second, third


def _product(m: Word, word: Word) -> tuple[Word, Word]:
    """Both words of m·word, for m of 24 bits."""
    m_high, m_low = m >> 16, m & 0xFFFF
    high, low = word >> 16, word & 0xFFFF
    middle = m_low * high
    inner = m_high * low + ((m_low * low) >> 16) + (middle & 0xFFFF)
    return m_high * high + (middle >> 16) + (inner >> 16), m * word


def _product_top(m: Word, word: Word) -> Word:
    """m·word / 2³², at most 257 too small: the last bits of `word` are not read."""
    high = word >> 16
    return (m >> 16) * high + (((m & 0xFFFF) * high) >> 16)


def _rest(high: Word, low: Word, type_: ir.Type) -> Value:
    """The angle from the nearest quarter turn, in radians, of 64 bits of turns.

    Its first word is `upper`·2¹⁶ + `middle`, the nearest such, so that the product of
    `upper` with the first digits of π/2 is exact. Words are converted as i32: what a
    target does fastest.
    """
    i32 = hlo.like(type_, element=ir.IntegerType.get_signless(32))

    def times(word: Value, scale: float) -> Value:
        value = hlo.convert(word, _f32())
        return hlo.multiply(value, hlo.constant_like(type_, scale))

    first = hlo.bitcast_convert(((high << 2) | (low >> 30)).value, i32)
    one, bits, less = (hlo.constant_like(i32, n) for n in (1, 16, 15))
    twice = hlo.shift_right_arithmetic(first, less)
    upper = hlo.shift_right_arithmetic(hlo.add(twice, one), one)
    middle = hlo.subtract(first, hlo.shift_left(upper, bits))
    lower = hlo.bitcast_convert(((low << 2) >> 1).value, i32)
    rest = hlo.add(times(middle, pi / 2 * 2.0**-32), times(lower, pi / 2 * 2.0**-63))
    rest = hlo.add(times(upper, (pi / 2 - QUARTER) * 2.0**-16), rest)
    return hlo.add(times(upper, QUARTER * 2.0**-16), rest)
