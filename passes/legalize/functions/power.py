"""xʸ of x >= 0 in f32 and f64, to about an ulp: 2^(y log2 x).

The logarithm has to be exact to a few ulp of y·log2 x, which may be 1000: it is the sum
of two numbers, as in fdlibm's `e_pow.c` (Sun Microsystems, 1993). Leading parts hold
half of the digits, so that their products are exact, fused with a sum or not. Series
are those of the logarithm, log m = 2 artanh s = ⅔ s (3 + s² + 3/5 s⁴ + ...) at
s = (m - 1)/(m + 1), and of the exponential function.
"""

from dataclasses import dataclass
from functools import cached_property
from math import factorial, log

from pcp.passes.legalize.functions.words import Number, Word, choose, horner


@dataclass(frozen=True)
class Layout:
    """How a float is laid out, and how far series go for all of its digits."""

    digits: int  # of the mantissa, without the leading one
    bias: int
    root: int  # the bits of √½
    factor: tuple[float, float]  # 2 / (3 log 2), the first of them of half the digits
    logarithm: int  # terms
    exponential: int

    @property
    def one(self) -> int:
        """The bits of 1."""
        return self.bias << self.digits

    @property
    def half(self) -> int:
        """The mask of the leading half of the digits, sign and exponent."""
        low = (self.digits + 2) // 2
        return ((1 << (32 if self.digits == 23 else 64)) - 1) >> low << low

    @cached_property
    def magic(self) -> float:
        """What brings a whole number into the last bits of a sum."""
        return 1.5 * 2.0**self.digits


LAYOUTS = {
    32: Layout(
        digits=23,
        bias=127,
        root=0x3F3504F3,
        factor=(9.6191406250e-01, -1.1736857402e-04),
        logarithm=5,
        exponential=7,
    ),
    64: Layout(
        digits=52,
        bias=1023,
        root=0x3FE6A09E667F3BCD,
        factor=(9.61796700954437255859e-01, -7.02846165095275826516e-09),
        logarithm=11,
        exponential=13,
    ),
}


def power(x: Number, y: Number) -> Number:
    """Of x >= 0; NaN below. x⁰ is 1 but at 0 and infinity, which callers see to."""
    layout = LAYOUTS[x.width]
    bound = 2.0**70
    least, most = y.like(-bound), y.like(bound)
    clamped = choose(y.is_("GT", bound), most, choose(y.is_("LT", -bound), least, y))
    value = _power(layout, x, clamped)
    small = x.is_("LT", 2.0 ** (1 - layout.bias))  # a subnormal number is taken for 0
    large = x.is_("EQ", float("inf"))
    grows, falls = y.is_("GT", 0), y.is_("LT", 0)
    value = choose(small, _end(x, falls), choose(large, _end(x, grows), value))
    value = choose(x.is_("LT", 0), float("nan"), value)
    return x.known(y.known(value))


def _end(x: Number, infinite) -> Number:
    return choose(infinite, float("inf"), x.like(0))


def _power(layout: Layout, x: Number, y: Number) -> Number:
    """Of a normal number and one that is not too large."""
    high, low = _binary_logarithm(layout, x)
    leading = _leading(layout, y)
    exact = leading * high
    rest = (y - leading) * high + y * low
    exponent = exact + rest
    most, least = layout.bias + 2.0, -(layout.bias + layout.digits + 3.0)
    over, under = exponent.is_("GE", most), exponent.is_("LE", least)
    inside = choose(over, most, choose(under, least, exponent))
    whole = inside.rounded()
    value = _exponential(layout, ((exact - whole) + rest) * log(2))
    half = (whole * 0.5).rounded()
    value = value * _two_to(layout, half) * _two_to(layout, whole - half)
    return choose(over, float("inf"), choose(under, 0.0, value))


def _binary_logarithm(layout: Layout, x: Number) -> tuple[Number, Number]:
    """log2 x of a normal number as a sum of two, the first of half the digits."""
    shifted = x.bits() + (layout.one - layout.root)
    places = (shifted >> layout.digits).as_number() - float(layout.bias)
    m = ((shifted & ((1 << layout.digits) - 1)) + layout.root).float_bits()
    f, d = m - 1.0, m + 1.0
    s = f / d
    s_high, d_high = _leading(layout, s), _leading(layout, d)
    s_low = ((f - s_high * d_high) - s_high * (m - (d_high - 1.0))) / d
    z, square = s * s, s_high * s_high
    rest = z * z * horner(z, _artanh(layout.logarithm)) + s_low * (s_high + s)
    t_high = _leading(layout, square + 3.0 + rest)
    t_low = rest - ((t_high - 3.0) - square)
    u, v = s_high * t_high, s_low * t_high + t_low * s
    p_high = _leading(layout, u + v)
    p_low = v - (p_high - u)
    first, second = layout.factor
    z_high, z_low = p_high * first, p_high * second + p_low * (first + second)
    high = _leading(layout, (z_high + z_low) + places)
    return high, z_low - ((high - places) - z_high)


def _artanh(count: int) -> list[float]:
    """3/5, 3/7, ... of ⅔ s (3 + s² + 3/5 s⁴ + ...), the last first."""
    return [3.0 / (2 * n + 1) for n in range(count + 1, 1, -1)]


def _exponential(layout: Layout, t: Number) -> Number:
    """eᵗ for |t| <= ½ log 2."""
    terms = [1.0 / factorial(n) for n in range(layout.exponential, 1, -1)]
    return (t + t * t * horner(t, terms)) + 1.0


def _two_to(layout: Layout, whole: Number) -> Number:
    """2ⁿ of a whole number within the exponents of the type."""
    word = (whole + layout.magic).bits() << layout.digits
    return Word((word + layout.one).value).float_bits()


def _leading(layout: Layout, x: Number) -> Number:
    """x with half of its digits."""
    return (x.bits() & layout.half).float_bits()
