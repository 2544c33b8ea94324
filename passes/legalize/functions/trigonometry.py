"""Sine, cosine and tangent of f64, to about an ulp at every finite x.

As legalize_trigonometry.py does it for f32, by Payne and Hanek (1983): |x| is m·2ᵉ with
m of 53 bits; 192 bits of 2/π from a place that e gives make 128 bits of the angle after
all whole turns, in quarter turns. No x of f64 comes nearer to a multiple of π/2 than
2⁻⁶¹ of a quarter turn, so 67 bits are left there. The words are of 32 bits in 64, so
that products and their sums are exact.

Polynomials on [-π/4, π/4], of an angle and what it is less than the true one: fdlibm,
`k_sin.c` and `k_cos.c` (Sun Microsystems, 1993).
"""

from collections.abc import Sequence
from itertools import pairwise

from pcp.dialect import hlo
from pcp.passes.legalize.functions.words import Number, Value, Word, choose, horner

# 55 zeros, then the bits of 2/π, in words of 32 bits.
TWO_OVER_PI = (
    *(0x00000000, 0x00000145, 0xF306DC9C, 0x882A53F8, 0x4EAFA3EA),
    *(0x69BB81B6, 0xC52B3278, 0x872083FC, 0xA2C757BD, 0x778AC36E),
    *(0x48DC7484, 0x9BA5C00C, 0x925DD413, 0xA32439FC, 0x3BD63962),
    *(0x534E7DD1, 0x046BEA5D, 0x768909D3, 0x38E04D68, 0xBEFC8273),
    *(0x23AC7306, 0xA673E939, 0x08BF177B, 0xF250763F, 0xF12FFFBC),
    *(0x0B301FDE, 0x5E2316B4, 0x14DA3EDA, 0x6CFD9E4F, 0x96136E9E),
    *(0x8C7ECD3C, 0xBFD45AEA, 0x4F758FD7, 0xCBE2F67A, 0x0E73EF14),
    *(0xA525D4D7, 0xF6BF623F, 0x1ABA10AC),
)
LIMBS = 6  # of 2/π that meet a mantissa
# The bits of π/4, from where on x is reduced, and the exponent there.
REDUCED_FROM = 0x3FE921FB54442D18
FIRST_EXPONENT = 1022
OWN_SINE = 0x3E40000000000000  # of 2⁻²⁷, below which x is its own sine and tangent
INFINITY = 0x7FF << 52
SIGN = 1 << 63
LOW = 0xFFFFFFFF
# π/2 in parts of 21 bits, whose products with words of 32 bits are exact.
QUARTER = (
    float.fromhex("0x1.921fbp+0"),
    float.fromhex("0x1.5110ap-22"),
    float.fromhex("0x1.4611a62633146p-42"),
)
SINE = (
    1.58969099521155010221e-10,
    -2.50507602534068634195e-08,
    2.75573137070700676789e-06,
    -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
)
SINE_FIRST = -1.66666666666666324348e-01
COSINE = (
    -1.13596475577881948265e-11,
    2.08757232129817482790e-09,
    -2.75573143513906633035e-07,
    2.48015872894767294178e-05,
    -1.38888888888741095749e-03,
    4.16666666666666019037e-02,
)


class Angle:
    """x as a number of quarter turns and a rest in [-π/4, π/4], a sum of two."""

    def __init__(self, x: Number) -> None:
        self._x = x
        bits = x.bits()
        self._sign = bits & SIGN
        size = bits & (SIGN - 1)
        self._tiny = size.is_("LT", OWN_SINE)
        self._finite = size.is_("LT", INFINITY)
        near = size.is_("LT", REDUCED_FROM)
        turns = _turns(size)
        quarters = (turns[0] + (1 << 29)) >> 30
        self._quarters = choose(near, 0, quarters)
        rest, low = _rest(turns)
        self._rest = choose(near, size.float_bits(), rest)
        self._low = choose(near, 0.0, low)
        self._square = self._rest * self._rest

    def sine(self) -> Number:
        """Of x."""
        value = self._by_quarter(self._quarters, self._sign)
        return self._known(choose(self._tiny, self._x, value))

    def cosine(self) -> Number:
        """Of x: the sine a quarter turn on, whatever the sign of x."""
        return self._known(self._by_quarter(self._quarters + 1, self._sign.like(0)))

    def tangent(self) -> Number:
        """Of x: ±sin/cos or ±cos/sin of the rest, negative in odd quarters."""
        odd = _is_odd(self._quarters)
        sine, cosine = self._sine_of_rest(), self._cosine_of_rest()
        value = choose(odd, cosine, sine) / choose(odd, sine, cosine)
        value = _signed(value, (self._quarters << 63) ^ self._sign)
        return self._known(choose(self._tiny, self._x, value))

    def _by_quarter(self, quarters: Word, sign: Word) -> Number:
        value = choose(_is_odd(quarters), self._cosine_of_rest(), self._sine_of_rest())
        return _signed(value, ((quarters & 2) << 62) ^ sign)

    def _sine_of_rest(self) -> Number:
        x, low, z = self._rest, self._low, self._square
        cube = z * x
        rest = z * (0.5 * low - cube * horner(z, SINE)) - low
        return x - (rest - cube * SINE_FIRST)

    def _cosine_of_rest(self) -> Number:
        x, low, z = self._rest, self._low, self._square
        half = 0.5 * z
        head = 1.0 - half
        tail = z * (z * horner(z, COSINE)) - x * low
        return head + (((1.0 - head) - half) + tail)

    def _known(self, value: Number) -> Number:
        """NaN at infinities and NaN."""
        return choose(self._finite, value, float("nan"))


def _is_odd(quarters: Word) -> Value:
    return (quarters & 1).is_("NE", 0)


def _signed(value: Number, sign: Word) -> Number:
    return (value.bits() ^ sign).float_bits()


def _turns(size: Word) -> list[Word]:
    """|x|·2/π modulo 4 in units of 2⁻¹⁹⁰: six words of 32 bits, the highest first."""
    mantissa = (size & ((1 << 52) - 1)) | (1 << 52)
    window = _window((size >> 52) - FIRST_EXPONENT)
    return _product(mantissa >> 32, mantissa & LOW, window)


def _window(place: Word) -> list[Word]:
    """192 bits of `TWO_OVER_PI` from bit `place` on, which is at most 1024.

    Steps of 16, 8, ... words choose, the rest is shifted; it may be 32.
    """
    words = [place.like(w) for w in TWO_OVER_PI]
    for step in (16, 8, 4, 2, 1):
        far = place.is_("GE", 32 * step)
        pairs = zip(words[step:], words, strict=False)
        words = [choose(far, later, sooner) for later, sooner in pairs]
        place = choose(far, place - 32 * step, place)
    pairs = list(pairwise(words))[:LIMBS]
    return [((a << 32 | b) << place) >> 32 for a, b in pairs]


def _product(high: Word, low: Word, window: Sequence[Word]) -> list[Word]:
    """(high·2³² + low)·window modulo 2¹⁹², column by column from the lowest."""
    found: list[Word] = []
    carry = low.like(0)
    kept = [low.like(0)] * 2  # upper halves of the column before
    before = low.like(0)
    for word in reversed(window):
        products = [low * word, high * before]
        total = carry
        for product in products:
            total = total + (product & LOW)
        for upper in kept:
            total = total + upper
        found.insert(0, total & LOW)
        carry, before = total >> 32, word
        kept = [product >> 32 for product in products]
    return found


def _rest(turns: Sequence[Word]) -> tuple[Number, Number]:
    """The angle from the nearest quarter turn, in radians, as a sum of two.

    Below, a fraction of a quarter turn is 128 bits behind the point, taken from 1 where
    it is above a half.
    """
    pairs = [a << 32 | b for a, b in zip(turns[::2], turns[1::2], strict=True)]
    upper, lower = (a << 2 | (b >> 62) for a, b in pairwise(pairs))
    back = upper.is_("GE", SIGN)
    upper, lower = (choose(back, v ^ (2 * SIGN - 1), v) for v in (upper, lower))
    words = [part for v in (upper, lower) for part in (v >> 32, v & LOW)]
    scaled = [w.as_number() * 2.0 ** -(32 * i + 32) for i, w in enumerate(words)]
    first, second, third = QUARTER
    low = (scaled[2] + scaled[3]) * sum(QUARTER)
    low = scaled[0] * third + scaled[1] * (second + third) + low
    low = scaled[0] * second + (scaled[1] * first + low)
    exact = scaled[0] * first
    high = exact + low
    parts = high, low - (high - exact)
    sign = choose(back, Word(hlo.constant_like(upper.value, SIGN)), 0)
    return _signed(parts[0], sign), _signed(parts[1], sign)
