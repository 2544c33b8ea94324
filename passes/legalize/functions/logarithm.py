"""log(1 + x) of f32 by arithmetic alone, where a device's own logarithm is coarse.

Vulkan allows it an absolute error of 2^-21 around 1, and drivers to take (1 + x) - 1
for x, so no rounding can be made good behind it. Where 1 + x is from √½ to √2, x stands
for itself; elsewhere 1 + x is 2^k·m with m between them, and its rounding is no more
than an ulp of the logarithm. Of s = f / (2 + f) with f = m - 1 the logarithm is
2 artanh s, a polynomial in s², as in Sun's fdlibm.
"""

from pcp.dialect import hlo
from pcp.passes.legalize.functions.words import Number, choose, horner

ONE, ROOT = 0x3F800000, 0x3F3504F3  # bits of 1 and of √½
LN2_HIGH, LN2_LOW = 6.9313812256e-01, 9.0580006145e-06
ARTANH = (0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693)


def log_plus_one(x: Number) -> Number:
    """To 3 ulp, subnormal numbers too; -∞ at -1, NaN below."""
    u = x + 1.0
    near = hlo.and_(u.is_("GE", 2**-0.5), u.is_("LT", 2**0.5))
    word = u.bits() + (ONE - ROOT)
    k = choose(near, 0.0, (word >> 23).as_number() - 127.0)
    f = choose(near, x, ((word & 0x7FFFFF) + ROOT).float_bits() - 1.0)
    s = f / (f + 2.0)
    z, half = s * s, f * f * 0.5
    rest = s * (half + z * horner(z, ARTANH)) + k * LN2_LOW
    value = (rest - half) + f + k * LN2_HIGH
    value = choose(abs(x).is_("LT", 2.0**-24), x, value)
    value = choose(u.is_("EQ", float("inf")), u, value)
    value = choose(x.is_("EQ", -1.0), float("-inf"), value)
    return x.known(choose(x.is_("LT", -1.0), float("nan"), value))
