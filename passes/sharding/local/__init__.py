"""One op as it runs on one member: the same op on parts, adjusted where sizes show.

Most ops are cloned onto the local operands with local result types. A few say sizes
or positions in attributes, count from the start of the whole tensor, or look over the
border of a part; those have an entry in `ADJUST`.
"""

from collections.abc import Sequence

from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import refuse
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
    """Refuse a reduction whose body uses a value from outside."""
    for region in op.regions:
        for block in region.blocks:
            inside = set(block.arguments)
            for view in block.operations:
                inner = view.operation
                if any(v not in inside for v in inner.operands):
                    refuse(op, "its body uses a value from outside; pass it in")
                inside.update(inner.results)


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
