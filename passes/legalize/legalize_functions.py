"""Functions at the points where IREE's kernels answer wrongly.

It computes xʸ as exp(y log x), but for a few constant y, which has no answer for
x < 0; atan2 and cbrt lose signed zeros and infinities; a number compared with its own
floor needs a function that no module has.
"""

from collections.abc import Callable, Sequence
from math import pi

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core.constants import splat
from pcp.passes.core.rewriting import defining

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
    if exponent is None or not _is_short(exponent):
        return [_power(x, y)]
    return [_product(x, int(exponent))]


def _product(x: Value, exponent: int) -> Value:
    """xⁿ by squares, 16-bit floats in f32."""
    element = hlo.element_type(x)
    wide = hlo.convert(x, ir.F32Type.get()) if ir.FloatType(element).width < 32 else x
    product = _repeated(wide, abs(exponent))
    if exponent < 0:
        product = hlo.divide(hlo.constant_like(wide, 1), product)
    return hlo.convert(product, element)


def _power(x: Value, y: Value) -> Value:
    """An odd y keeps the sign of x; one that is not whole knows no x < 0."""
    one = hlo.constant_like(x, 1)
    size = hlo.abs(x)
    no_growth = hlo.or_(
        hlo.compare("EQ", size, one), hlo.compare("EQ", y, hlo.zeros(y.type))
    )
    value = hlo.select(no_growth, one, hlo.power(size, y))
    half = hlo.multiply(y, hlo.constant_like(y, 0.5))
    whole, even = (hlo.compare("EQ", hlo.round_nearest_even(v), v) for v in (y, half))
    same = hlo.compare("EQ", hlo.add(size, size), size)  # of 0 and of infinity
    other = hlo.select(same, value, hlo.constant_like(x, float("nan")))
    signed = hlo.select(even, value, hlo.negate(value))
    below = hlo.select(whole, signed, other)
    unknown = hlo.and_(hlo.compare("NE", y, y), hlo.compare("NE", x, one))
    value = hlo.select(_is_negative(x), below, value)
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
    """±∞ is its own root."""
    (x,) = op.operands
    made = _gives_way(op, lambda value: value == x)
    if made or not hlo.is_float(hlo.element_type(x)):
        return None
    infinite = hlo.compare("EQ", hlo.abs(x), hlo.constant_like(x, float("inf")))
    return [hlo.select(infinite, x, hlo.cbrt(x))]


def atan2(op: ir.Operation) -> Values | None:
    """From the angle in the first quadrant, reflected by the signs of y and x."""
    y, x = op.operands
    if not hlo.is_float(hlo.element_type(y)) or _is_first_quadrant(op):
        return None
    return [angle(y, x)]


def angle(y: Value, x: Value) -> Value:
    """Of (x, y) from the first axis, in [-π, π]; −0 is below it."""
    up, right = hlo.abs(y), hlo.abs(x)
    turn = hlo.atan2(up, right)
    same = hlo.compare("EQ", up, right)
    zero = hlo.and_(same, hlo.compare("EQ", up, hlo.zeros(up.type)))
    turn = hlo.select(zero, hlo.zeros(turn.type), turn)
    infinite = hlo.compare("EQ", up, hlo.constant_like(up, float("inf")))
    diagonal = hlo.constant_like(turn, pi / 4)
    turn = hlo.select(hlo.and_(same, infinite), diagonal, turn)
    turned = hlo.subtract(hlo.constant_like(turn, pi), turn)
    turn = hlo.select(_is_negative(x), turned, turn)
    return hlo.select(_is_negative(y), hlo.negate(turn), turn)


def _is_first_quadrant(op: ir.Operation) -> bool:
    """Whether it is what `atan2` makes: of sizes, and 0 where both are."""
    sizes = all(defining(x, "abs") is not None for x in op.operands)
    return sizes and _gives_way(op, lambda value: splat(value) == 0)


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


def _is_negative(x: Value) -> Value:
    """By the sign bit: −0 is negative."""
    width = ir.FloatType(hlo.element_type(x)).width
    word = hlo.like(x, element=ir.IntegerType.get_signless(width))
    bits = hlo.bitcast_convert(x, word)
    return hlo.compare("LT", bits, hlo.zeros(word))
