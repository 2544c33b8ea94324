"""Whether the rows of an index tensor differ: no two of a scatter's rows then meet.

Indices of what was taken along an axis have a column that counts the rows (`iota`). The
column is followed through what moves or widens numbers, part by part.
"""

from dataclasses import dataclass

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.constants import array
from pcp.passes.core.rewriting import attributes, defining

Window = tuple[slice, ...]
"""The part of a tensor that is looked at: a slice with a step of 1 for each dim."""


@dataclass(frozen=True)
class Differ:
    """The numbers of a part are all different, and are in `[low, high]`."""

    low: int
    high: int


def rows_differ(indices: ir.Value) -> bool:
    """Whether no two rows of `[M, K]` are equal; False where that cannot be seen."""
    rows, columns = hlo.shape_of(indices)
    return any(
        _differ(indices, (slice(0, rows), slice(k, k + 1))) is not None
        for k in range(columns)
    )


def _differ(value: ir.Value, window: Window) -> Differ | None:
    """What is known of a part of `value`: that its numbers differ, or None."""
    if (numbers := _numbers(value, window)) is not None:
        distinct = numbers.size == np.unique(numbers).size
        return Differ(int(numbers.min()), int(numbers.max())) if distinct else None
    op = defining(value)
    if op is None or op.name not in _STEPS:
        return None
    return _STEPS[op.name](op, window)


def _sizes(window: Window) -> list[int]:
    return [part.stop - part.start for part in window]


def _iota(op: ir.Operation, window: Window) -> Differ | None:
    counted = ir.IntegerAttr(attributes(op)["iota_dimension"]).value
    if any(n > 1 for d, n in enumerate(_sizes(window)) if d != counted):
        return None
    return Differ(window[counted].start, window[counted].stop - 1)


def _convert(op: ir.Operation, window: Window) -> Differ | None:
    """A conversion between integers that hold all of the numbers."""
    found, element = _differ(op.operands[0], window), hlo.element_type(op.result)
    if found is None or not isinstance(element, ir.IntegerType):
        return None
    fits = found.high < 2 ** (element.width - 1) and found.low >= 0
    return found if fits else None


def _clamp(op: ir.Operation, window: Window) -> Differ | None:
    """A clamp whose bounds bind nowhere."""
    low, value, high = op.operands
    found = _differ(value, window)
    below, above = (
        _numbers(bound, window if hlo.shape_of(bound) else ()) for bound in (low, high)
    )
    if found is None or below is None or above is None:
        return None
    binds = below.max() > found.low or above.min() < found.high
    return None if binds else found


def _slice(op: ir.Operation, window: Window) -> Differ | None:
    kept = attributes(op)
    starts, strides = (
        list(ir.DenseI64ArrayAttr(kept[name])) for name in ("start_indices", "strides")
    )
    if any(stride != 1 for stride in strides):
        return None
    parts = zip(window, starts, strict=True)
    moved = (slice(part.start + s, part.stop + s) for part, s in parts)
    return _differ(op.operands[0], tuple(moved))


def _concatenate(op: ir.Operation, window: Window) -> Differ | None:
    """A part that lies within one of the operands."""
    along = ir.IntegerAttr(attributes(op)["dimension"]).value
    start = 0
    for operand in op.operands:
        end = start + hlo.shape_of(operand)[along]
        if start <= window[along].start and window[along].stop <= end:
            part = slice(window[along].start - start, window[along].stop - start)
            return _differ(operand, (*window[:along], part, *window[along + 1 :]))
        start = end
    return None


def _reshape(op: ir.Operation, window: Window) -> Differ | None:
    """The whole of a tensor, in another shape."""
    if _sizes(window) != list(hlo.shape_of(op.result)):
        return None
    operand = op.operands[0]
    return _differ(operand, tuple(slice(0, n) for n in hlo.shape_of(operand)))


def _broadcast(op: ir.Operation, window: Window) -> Differ | None:
    """A broadcast that repeats nothing within the part."""
    dims = list(ir.DenseI64ArrayAttr(attributes(op)["broadcast_dimensions"]))
    operand, sizes = op.operands[0], _sizes(window)
    shape = hlo.shape_of(operand)
    whole = dict(zip(dims, shape, strict=True))
    if any(n > 1 and whole.get(d, 1) == 1 for d, n in enumerate(sizes)):
        return None
    parts = (window[d] if n > 1 else slice(0, 1) for d, n in whole.items())
    return _differ(operand, tuple(parts))


_STEPS = {
    "stablehlo.iota": _iota,
    "stablehlo.convert": _convert,
    "stablehlo.clamp": _clamp,
    "stablehlo.slice": _slice,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.reshape": _reshape,
    "stablehlo.broadcast_in_dim": _broadcast,
}


def _numbers(value: ir.Value, window: Window) -> np.ndarray | None:
    """A part of a constant, or of a constant that is repeated; None for the rest."""
    op = defining(value)
    if op is not None and op.name == "stablehlo.broadcast_in_dim":
        dims = list(ir.DenseI64ArrayAttr(attributes(op)["broadcast_dimensions"]))
        shape = hlo.shape_of(op.operands[0])
        parts = (
            window[d] if n > 1 else slice(0, 1)
            for d, n in zip(dims, shape, strict=True)
        )
        found = _numbers(op.operands[0], tuple(parts))
        if found is None:
            return None
        places = [1] * len(window)
        for d, n in zip(dims, found.shape, strict=True):
            places[d] = n
        return np.broadcast_to(found.reshape(places), _sizes(window))
    found = array(value)
    return None if found is None else found[window]
