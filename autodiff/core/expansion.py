"""Ops that are differentiated as other ops are replaced by these before any walk.

What replaces an op may hold further ones to be replaced: it is visited too.
"""

from collections.abc import Iterator

from pcp.autodiff.core import registry
from pcp.dialect.bindings import ir, stablehlo


def expand(function: ir.Operation) -> None:
    """Expand all that can be, in place, at any depth of regions.

    From the end: an op that completes what another began (`async_done`) is seen
    first, inner ops before the op that holds them.
    """
    pending = list(_operations(function))
    _note_channels(function, pending)
    while pending:
        op = pending.pop()
        make = getattr(registry.find(op.name), "expand", None)
        if make is None:
            continue
        husk = ir.Operation.create("builtin.module", regions=1, loc=op.location)
        block = husk.regions[0].blocks.append()
        with ir.InsertionPoint(block), op.location:
            values = make(op)
        made = [inner.operation for inner in block.operations]
        if values is not None:
            pending += _put(op, values, made)
        husk.erase()


def _put(
    op: ir.Operation, values: list[ir.Value], made: list[ir.Operation]
) -> list[ir.Operation]:
    """Replace the op; returns what may have to be expanded in turn."""
    for inner in made:
        inner.move_before(op)
    for result, value in zip(op.results, values, strict=True):
        if result != value:
            result.replace_all_uses_with(value)
    op.erase()
    return [each for inner in made for each in (inner, *_operations(inner))]


def _operations(op: ir.Operation) -> Iterator[ir.Operation]:
    """All ops inside; an op that holds others comes before them."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _operations(inner.operation)


# --- channels ---

#: On a function while it is differentiated: the last channel number in use.
_CHANNELS = "pcp.channels"


def _note_channels(function: ir.Operation, ops: list[ir.Operation]) -> None:
    used = [_channel(op) for op in ops if "channel_handle" in op.attributes]
    if used:
        _set_channels(function, max(used))


def _channel(op: ir.Operation) -> int:
    return stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle


def _set_channels(function: ir.Operation, last: int) -> None:
    i64 = ir.IntegerType.get_signless(64)
    function.attributes[_CHANNELS] = ir.IntegerAttr.get(i64, last)


def fresh_channel(op: ir.Operation) -> int:
    """A channel number that no collective of the function around `op` has."""
    function = op
    while _CHANNELS not in function.attributes:
        function = function.parent.operation
    last = ir.IntegerAttr(function.attributes[_CHANNELS]).value + 1
    _set_channels(function, last)
    return last


def forget_channels(function: ir.Operation) -> None:
    """Drop the note once the function is finished."""
    if _CHANNELS in function.attributes:
        del function.attributes[_CHANNELS]
