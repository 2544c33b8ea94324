"""Functions of f64 that IREE has no code for, or computes to few digits.

Its exponential function and logarithm of f64 are good to an ulp; eˣ - 1 and log(1 + x)
it computes as they read, which leaves no digit of a small x. Here they are rid of the
rounding of eˣ and of 1 + x: W. Kahan, in the HP-15C Advanced Functions Handbook (1982).
"""

from pcp.dialect import hlo
from pcp.passes.legalize.functions.words import Number, choose


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
