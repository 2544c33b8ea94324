"""Conversion of floats to integers: to the nearest that the type holds, 0 for NaN.

IREE leaves what does not fit to the processor: x86 gives the least integer for all of
it. StableHLO leaves it open; this is what XLA does on every platform, and so what a
model that was tried there relies on.
"""

from collections.abc import Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis import ranges
from pcp.passes.core import constants
from pcp.passes.core.rewriting import defining

Value = ir.Value
Values = Sequence[Value]
DIGITS = {32: 24, 64: 53}
# What keeps a value between its bounds, and is finite if that is.
BETWEEN = ("broadcast_in_dim", "floor", "ceil", "reshape", "slice", "transpose")


def convert(op: ir.Operation) -> Values | None:
    """Saturated, or None where all values fit or none is converted so."""
    (x,) = op.operands
    to = hlo.element_type(op.result)
    if not hlo.is_float(hlo.element_type(x)) or not isinstance(to, ir.IntegerType):
        return None
    low, high = ranges.limits(op.result.type)
    if to.width == 1 or _fits(x, low, high):
        return None
    return [_saturated(_wide(x), op.result.type, low, high)]


def _wide(x: Value) -> Value:
    """16-bit floats hold no bounds of 32-bit integers: f32 holds all of both."""
    narrow = ir.FloatType(hlo.element_type(x)).width < 32
    return hlo.convert(x, ir.F32Type.get()) if narrow else x


def _saturated(x: Value, type_: ir.Type, low: int, high: int) -> Value:
    """`low` is a float exactly; `high` may not be, and is put in afterwards."""
    last = _last_float(x, high)
    number = hlo.select(hlo.compare("EQ", x, x), x, hlo.zeros(x.type))
    bottom, top = (hlo.constant_like(x, bound) for bound in (low, last))
    inside = hlo.clamp(bottom, number, top)
    value = hlo.convert(inside, hlo.element_type(type_))
    if last == high:
        return value
    above = hlo.compare("GT", x, hlo.constant_like(x, last))
    return hlo.select(above, hlo.constant_like(type_, high), value)


def _last_float(x: Value, high: int) -> int:
    """The largest number of x's type that is at most `high` = 2ⁿ - 1."""
    spare = high.bit_length() - DIGITS[ir.FloatType(hlo.element_type(x)).width]
    return high >> spare << spare if spare > 0 else high


def _fits(x: Value, low: int, high: int) -> bool:
    """Whether x, by how it is made, is no NaN and lies between the bounds."""
    if (known := constants.array(x)) is not None:
        return bool(np.all((known >= low) & (known <= high)))
    if (op := defining(x)) is None:
        return False
    if op.name.removeprefix("stablehlo.") in BETWEEN:
        return _fits(op.operands[0], low, high)
    if (found := _counts(op)) is not None:
        return low <= found[0] and found[1] <= high
    return op.name == "stablehlo.clamp" and _is_clamped(op, low, high)


def _counts(op: ir.Operation) -> tuple[float, float] | None:
    """Bounds on what counts up or was an integer, as f32 or f64 rounds them."""
    if ir.FloatType(hlo.element_type(op.result)).width < 32:
        return None
    bounds = None
    if op.name == "stablehlo.iota":
        bounds = 0, max(hlo.shape_of(op.result))
    elif op.name == "stablehlo.convert":
        source = op.operands[0]
        if isinstance(hlo.element_type(source), ir.IntegerType):
            bounds = ranges.interval(source) or ranges.limits(source.type)
    return bounds and (float(np.float32(bounds[0])), float(np.float32(bounds[1])))


def _is_clamped(op: ir.Operation, low: int, high: int) -> bool:
    bottom, x, top = op.operands
    return _fits(bottom, low, high) and _fits(top, low, high) and _is_number(x)


def _is_number(x: Value) -> bool:
    """Whether it is chosen by x = x, which no NaN is, or counts."""
    if (op := defining(x)) is None:
        return False
    if op.name != "stablehlo.select":
        return _counts(op) is not None
    test = defining(op.operands[0], "compare")
    return (
        test is not None
        and "EQ" in str(test.attributes["comparison_direction"])
        and all(v == op.operands[1] for v in test.operands)
    )
