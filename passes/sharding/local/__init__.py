"""One op as it runs on one member: the same op on parts, adjusted where sizes show.

Most ops are cloned onto the local operands with local result types. A few say sizes
or positions in attributes, count from the start of the whole tensor, or look over the
border of a part; those have an entry in `ADJUST`.
"""

from collections.abc import Sequence

from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import defining, refuse
from pcp.passes.sharding.local import indexing, reductions, sources, windows
from pcp.passes.sharding.local.op import Adjust, Local, Value

__all__ = ["ADJUST", "Local", "check_closed", "localize"]


def localize(at: Local, operands: Sequence[Value]) -> list[Value]:
    """The op's results on the member, at the current insertion point."""
    adjust = ADJUST.get(at.op.name)
    if adjust is None or at.is_whole:
        return list(at.clone(operands).results)
    return list(adjust(at, operands))


def check_closed(op: ir.Operation) -> None:
    """Bring constants that a body uses into it; refuse one with other captures.

    MLIR's canonicalization moves the constants of a comparator in front of the sort.
    """
    for region in op.regions:
        for block in region.blocks:
            inside = set(block.arguments)
            for view in list(block.operations):
                inner = view.operation
                for i, value in enumerate(inner.operands):
                    if value not in inside:
                        inner.operands[i] = _brought(op, value, inner)
                inside.update(inner.results)


def _brought(op: ir.Operation, value: Value, user: ir.Operation) -> Value:
    """A copy of a constant in front of its user."""
    made = defining(value, "constant")
    if made is None:
        refuse(op, "its body uses a value from outside; pass it in")
    with ir.InsertionPoint(user):
        return made.clone().results[0]


ADJUST: dict[str, Adjust] = {
    "arith.constant": sources.constant,
    "stablehlo.concatenate": windows.concatenate,
    "stablehlo.constant": sources.constant,
    "stablehlo.convolution": windows.convolution,
    "stablehlo.dynamic_slice": indexing.dynamic_slice,
    "stablehlo.gather": indexing.gather,
    "stablehlo.iota": sources.iota,
    "stablehlo.pad": windows.pad,
    "stablehlo.reduce": reductions.reduce,
    "stablehlo.reduce_window": windows.reduce_window,
    "stablehlo.reverse": windows.reverse,
    "stablehlo.scatter": indexing.scatter,
    "stablehlo.select_and_scatter": windows.select_and_scatter,
    "stablehlo.slice": windows.slice_,
}
