"""cosh and sinh from e^|x|, as accurate as it.

CHLO's own add log ½ to x, whose rounding is that of a number near 88, or 709, and so
errs by as many ulp.
"""

from pcp.dialect import hlo
from pcp.passes.legalize.functions.words import Number, choose

#: Above, e^|x| may overflow, and e^-|x| is no part of the sum.
FAR = {16: 8.0, 32: 80.0, 64: 700.0}


def cosh(x: Number) -> Number:
    """½ u + ½ / u at u = e^|x|."""
    u = Number(hlo.exponential(abs(x).value))
    return choose(_is_far(x), _half_of_large(x), 0.5 * u + 0.5 / u)


def sinh(x: Number) -> Number:
    """½ (t + t / (t + 1)) at t = e^|x| - 1."""
    t = Number(hlo.exponential_minus_one(abs(x).value))
    value = choose(_is_far(x), _half_of_large(x), 0.5 * (t + t / (t + 1.0)))
    negative = choose(x.is_("LT", 0.0), -value, value)
    return choose(x.is_("EQ", 0.0), x, negative)


def _is_far(x: Number):
    return abs(x).is_("GT", FAR[x.width])


def _half_of_large(x: Number) -> Number:
    """½ e^|x|, which may be finite where e^|x| is not."""
    root = Number(hlo.exponential((abs(x) * 0.5).value))
    return (0.5 * root) * root
