"""What integers a value can hold: interval arithmetic over its definition.

`interval(x)` is `(low, high)`, both included, or None when nothing is known.
Sound for arithmetic that does not leave the element type: where it could wrap,
nothing is known.
"""

from collections.abc import Callable

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import constants
from pcp.passes.core.elementwise import integer_limits
from pcp.passes.core.rewriting import defining, integer, ints

Interval = tuple[int, int]
Seen = dict[ir.Value, Interval | None]
DEPTH = 32


def interval(value: ir.Value) -> Interval | None:
    """Bounds on every element of an integer tensor."""
    return _find(value, DEPTH, {})


def _find(value: ir.Value, depth: int, seen: Seen) -> Interval | None:
    if value not in seen:
        seen[value] = _bounds(value, depth, seen)
    return seen[value]


def _bounds(value: ir.Value, depth: int, seen: Seen) -> Interval | None:
    if not isinstance(hlo.element_type(value), ir.IntegerType):
        return None
    if (known := constants.array(value)) is not None:
        return (int(known.min()), int(known.max())) if known.size else (0, 0)
    op = defining(value)
    if op is None or depth == 0 or (rule := RULES.get(op.name)) is None:
        return _narrow_type(value)
    found = rule(op, lambda v: _find(v, depth - 1, seen))
    if found is None or not fits(found, value.type):
        return _narrow_type(value)
    return found


def piece(x: ir.Value, dimension: int, index: int) -> tuple[ir.Value, int]:
    """What holds position `index` along `dimension` of joined tensors, and where."""
    joined = defining(x, "concatenate")
    if joined is None or integer(joined, "dimension") != dimension:
        return x, index
    for operand in joined.operands:
        size = hlo.shape_of(operand)[dimension]
        if index < size:
            return piece(operand, dimension, index)
        index -= size
    return x, index


def component(indices: ir.Value, dimension: int, index: int) -> Interval | None:
    """Bounds on `indices` at position `index` along `dimension`.

    A `dimension` one past the last means that the indices are scalars.
    """
    indices, index = piece(indices, dimension, index)
    if (op := defining(indices, "broadcast_in_dim")) is not None:
        dims = ints(op, "broadcast_dimensions")
        if dimension in dims:
            return component(op.operands[0], dims.index(dimension), index)
    if (op := defining(indices, "clamp")) is not None:
        return _clamp(op, lambda v: component(v, dimension, index))
    known = constants.array(indices)
    if known is not None and dimension < known.ndim and known.size:
        row = np.take(known, index, dimension)
        return int(row.min()), int(row.max())
    return interval(indices)


def limits(type_: ir.Type) -> Interval:
    """The least and greatest integer of a tensor's element type."""
    return integer_limits(hlo.element_type(type_))


def fits(bounds: Interval, type_: ir.Type) -> bool:
    """Whether the element type holds all of the interval."""
    low, high = limits(type_)
    return low <= bounds[0] and bounds[1] <= high


def _narrow_type(value: ir.Value) -> Interval | None:
    """8 and 16-bit types bound their values enough to be worth knowing."""
    if ir.IntegerType(hlo.element_type(value)).width > 16:
        return None
    return limits(value.type)


Find = Callable[[ir.Value], Interval | None]


def _operand(op: ir.Operation, find: Find) -> Interval | None:
    return find(op.operands[0])


def _union(operands: list[ir.Value], find: Find) -> Interval | None:
    found = [find(v) for v in operands]
    known = [f for f in found if f is not None]
    if len(known) < len(found):
        return None
    return min(f[0] for f in known), max(f[1] for f in known)


def _iota(op: ir.Operation, find: Find) -> Interval:
    n = hlo.shape_of(op.result)[integer(op, "iota_dimension")]
    return 0, max(n - 1, 0)


def _clamp(op: ir.Operation, find: Find) -> Interval | None:
    low, x, high = (find(v) for v in op.operands)
    if low is None or high is None:
        return None
    inner = x or (low[0], high[1])
    bottom = min(max(inner[0], low[0]), high[0])
    return bottom, min(max(inner[1], low[1]), high[1])


def _maximum(op: ir.Operation, find: Find) -> Interval | None:
    left, right = (find(v) or limits(v.type) for v in op.operands)
    return max(left[0], right[0]), max(left[1], right[1])


def _minimum(op: ir.Operation, find: Find) -> Interval | None:
    left, right = (find(v) or limits(v.type) for v in op.operands)
    return min(left[0], right[0]), min(left[1], right[1])


def _arithmetic(combine: Callable[[int, int], int]) -> Callable:
    def rule(op: ir.Operation, find: Find) -> Interval | None:
        left, right = (find(v) for v in op.operands)
        if left is None or right is None:
            return None
        corners = [combine(a, b) for a in left for b in right]
        return min(corners), max(corners)

    return rule


def _remainder(op: ir.Operation, find: Find) -> Interval | None:
    """Takes the dividend's sign, and stays below the divisor."""
    dividend, divisor = (find(v) for v in op.operands)
    if divisor is None or divisor[0] <= 0:
        return None
    below = divisor[1] - 1
    if dividend is not None and dividend[0] >= 0:
        return 0, min(below, dividend[1])
    return -below, below


def _convert(op: ir.Operation, find: Find) -> Interval | None:
    source = op.operands[0]
    if not isinstance(hlo.element_type(source), ir.IntegerType):
        return None
    return find(source) or limits(source.type)


def _pad(op: ir.Operation, find: Find) -> Interval | None:
    return _union(list(op.operands)[:2], find)


def _select(op: ir.Operation, find: Find) -> Interval | None:
    return _union(list(op.operands)[1:], find)


def _all(op: ir.Operation, find: Find) -> Interval | None:
    return _union(list(op.operands), find)


def _and(op: ir.Operation, find: Find) -> Interval | None:
    """Masking with something non-negative bounds from both sides."""
    found = [find(v) for v in op.operands]
    masks = [f[1] for f in found if f is not None and f[0] >= 0]
    return (0, min(masks)) if masks else None


RULES: dict[str, Callable[[ir.Operation, Find], Interval | None]] = {
    "stablehlo.add": _arithmetic(lambda a, b: a + b),
    "stablehlo.and": _and,
    "stablehlo.broadcast_in_dim": _operand,
    "stablehlo.clamp": _clamp,
    "stablehlo.concatenate": _all,
    "stablehlo.convert": _convert,
    "stablehlo.dynamic_slice": _operand,
    "stablehlo.gather": _operand,
    "stablehlo.iota": _iota,
    "stablehlo.maximum": _maximum,
    "stablehlo.minimum": _minimum,
    "stablehlo.multiply": _arithmetic(lambda a, b: a * b),
    "stablehlo.pad": _pad,
    "stablehlo.remainder": _remainder,
    "stablehlo.reshape": _operand,
    "stablehlo.reverse": _operand,
    "stablehlo.select": _select,
    "stablehlo.slice": _operand,
    "stablehlo.subtract": _arithmetic(lambda a, b: a - b),
    "stablehlo.transpose": _operand,
}
