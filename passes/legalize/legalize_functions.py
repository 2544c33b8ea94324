"""Functions at the points where IREE's kernels answer wrongly.

It computes xʸ as exp(y log x), but for a few constant y, which has no answer for
x < 0, and as many ulp of error as y log x is large; atan2 and cbrt lose signed zeros
and infinities; a number compared with its own floor needs a function that no module
has. How exact what stands in their place is: docs/accuracy.md.
"""

from collections.abc import Callable, Sequence
from math import pi, sqrt

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core.constants import splat
from pcp.passes.core.rewriting import defining
from pcp.passes.legalize.functions import arctangent, hyperbolic, roots
from pcp.passes.legalize.functions import power as positive
from pcp.passes.legalize.functions.words import (
    Number,
    choose,
    in_f32,
    is_double,
    is_negative,
)

Value = ir.Value
Values = Sequence[Value]
# Exponents for which IREE multiplies, and those for which pcp does.
MULTIPLIED = (-2, -1, 0, 1, 2, 3)
LONGEST = 16


def power(op: ir.Operation) -> Values | None:
    """From |x|ʸ, by the rules of IEEE 754 pow; None where IREE's is right."""
    x, y = op.operands
    real = hlo.is_float(hlo.element_type(x))
    exponent = splat(y)
    if not real or exponent in MULTIPLIED or _is_guarded(op):
        return None
    if exponent is not None and _is_short(exponent):
        return [_product(x, int(exponent))]
    if is_double(x):
        return [_power(x, y, hlo.power)]
    return [in_f32(_power_of_numbers, x, y)]


def _power_of_numbers(x: Number, y: Number) -> Number:
    def size_to(size: Value, exponent: Value) -> Value:
        return positive.power(Number(size), Number(exponent)).value

    return Number(_power(x.value, y.value, size_to))


def _product(x: Value, exponent: int) -> Value:
    """xⁿ by squares, 16-bit floats in f32."""
    element = hlo.element_type(x)
    wide = hlo.convert(x, ir.F32Type.get()) if ir.FloatType(element).width < 32 else x
    product = _repeated(wide, abs(exponent))
    if exponent < 0:
        product = hlo.divide(hlo.constant_like(wide, 1), product)
    return hlo.convert(product, element)


def _power(x: Value, y: Value, of_size: Callable[[Value, Value], Value]) -> Value:
    """An odd y keeps the sign of x; one that is not whole knows no x < 0."""
    one = hlo.constant_like(x, 1)
    size = hlo.abs(x)
    no_growth = hlo.or_(
        hlo.compare("EQ", size, one), hlo.compare("EQ", y, hlo.zeros(y.type))
    )
    value = hlo.select(no_growth, one, of_size(size, y))
    half = hlo.multiply(y, hlo.constant_like(y, 0.5))
    whole, even = (hlo.compare("EQ", hlo.round_nearest_even(v), v) for v in (y, half))
    same = hlo.compare("EQ", hlo.add(size, size), size)  # of 0 and of infinity
    other = hlo.select(same, value, hlo.constant_like(x, float("nan")))
    signed = hlo.select(even, value, hlo.negate(value))
    below = hlo.select(whole, signed, other)
    unknown = hlo.and_(hlo.compare("NE", y, y), hlo.compare("NE", x, one))
    value = hlo.select(is_negative(x), below, value)
    return hlo.select(unknown, y, value)


def _is_short(exponent: float) -> bool:
    """Whether products are as good as IREE's exp(y log x), and faster."""
    return abs(exponent) <= LONGEST and exponent == int(exponent)


def _repeated(x: Value, count: int) -> Value:
    if count == 1:
        return x
    half = _repeated(x, count // 2)
    square = hlo.multiply(half, half)
    return hlo.multiply(square, x) if count % 2 else square


def _is_guarded(op: ir.Operation) -> bool:
    """Whether it is what `power` makes: |x|ʸ that gives way to 1."""
    made = defining(op.operands[0], "abs") is not None
    return made and _gives_way(op, lambda value: splat(value) == 1)


def _gives_way(op: ir.Operation, to: Callable[[Value], bool]) -> bool:
    """Whether all uses are selects that prefer something else to it."""
    uses = list(op.result.uses)
    return bool(uses) and all(
        use.owner.name == "stablehlo.select"
        and use.operand_number == 2
        and to(use.owner.operands[1])
        for use in uses
    )


def cbrt(op: ir.Operation) -> Values | None:
    """Up to 32 bits; of f64 pcp-expand-doubles makes it."""
    (x,) = op.operands
    if not hlo.is_float(hlo.element_type(x)) or is_double(x):
        return None
    return [in_f32(roots.cbrt, x)]


def atan2(op: ir.Operation) -> Values | None:
    """Up to 32 bits; of f64 pcp-expand-doubles makes it."""
    y, x = op.operands
    if not hlo.is_float(hlo.element_type(y)) or is_double(y):
        return None
    return [angle(y, x)]


def angle(y: Value, x: Value) -> Value:
    """Of (x, y) from the first axis, in [-π, π]; −0 is below it."""
    return hlo.atan2(y, x) if is_double(y) else in_f32(arctangent.angle, y, x)


def sinh(op: ir.Operation) -> Values | None:
    """Of real numbers; those of complex ones are CHLO's."""
    return _of_real(op, hyperbolic.sinh)


def cosh(op: ir.Operation) -> Values | None:
    """Of real numbers; those of complex ones are CHLO's."""
    return _of_real(op, hyperbolic.cosh)


def erf(op: ir.Operation) -> Values | None:
    """Odd; 2/√π x near 0, where the quotient of CHLO's polynomials is one of zeros."""
    return _of_real(op, _erf)


def _erf(x: Number) -> Number:
    size = abs(x)
    value = Number(hlo.op("chlo.erf", [size.value], [size.value.type]).result)
    value = choose(x.is_("LT", 0.0), -value, value)
    return choose(size.is_("LT", 2.0**-30), x * (2 / sqrt(pi)), value)


def erf_inv(op: ir.Operation) -> Values | None:
    """A step of Newton's on erfc y = 1 - |x| for |x| above a half.

    CHLO's own takes log(1 - x²) of a rounded square, and errs by 10⁵ ulp of f64.
    """
    (x,) = op.operands
    if ir.FloatType(hlo.element_type(x)).width < 32:
        return None
    value = Number(hlo.op("chlo.erf_inv", [x], [x.type]).result)
    size, y = abs(Number(x)), abs(value)
    missing = Number(hlo.op("chlo.erfc", [y.value], [x.type]).result) - (1.0 - size)
    slope = Number(hlo.exponential((y * y).value)) * (sqrt(pi) / 2)
    better = y + missing * slope
    better = choose(Number(x).is_("LT", 0.0), -better, better)
    far = hlo.and_(size.is_("GT", 0.5), size.is_("LT", 1.0))
    return [choose(far, better, value).value]


def _of_real(op: ir.Operation, function: Callable[[Number], Number]) -> Values | None:
    (x,) = op.operands
    if not hlo.is_float(hlo.element_type(x)):
        return None
    return [function(Number(x)).value if is_double(x) else in_f32(function, x)]


def compare(op: ir.Operation) -> Values | None:
    """x = ⌊x⌋ and x = ⌈x⌉ as x = round(x), and so for ≠; None for all else.

    LLVM makes a truncation of either comparison, and the generic processor has it as a
    function of the C runtime's alone ("undefined symbol: truncf").
    """
    how = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    if how not in ("EQ", "NE"):
        return None
    for x, other in (op.operands, reversed(op.operands)):
        made = defining(other, "floor") or defining(other, "ceil")
        if made is not None and made.operands[0] == x:
            return [hlo.compare(how, hlo.round_nearest_even(x), x)]
    return None
