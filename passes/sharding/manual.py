"""Values that each member computes for itself: a program of parts in one of wholes.

Between `pcp.to_part` and `pcp.from_part` stand ops on a member's own parts. To the
passes their tensors are whole, alike in shape on all members; but the numbers differ,
so nothing may cut them or tie them to other tensors. Such ops carry `pcp.manual`.
"""

from pcp.dialect.bindings import ir
from pcp.dialect.shardy.manual import PLACE

MANUAL = "pcp.manual"
TO_PART, FROM_PART = "pcp.to_part", "pcp.from_part"


def is_manual(op: ir.Operation) -> bool:
    """Whether the op is of one member's own program."""
    return MANUAL in op.attributes or op.name in (TO_PART, FROM_PART, PLACE)


def mark(block: ir.Block, parts: set[ir.Value] | None = None) -> None:
    """Mark every op of a block that reads a part, and those inside of them.

    `parts` are the values of parts outside of the block.
    """
    parts = set() if parts is None else parts
    for view in block.operations:
        op = view.operation
        if op.name == FROM_PART or op.name.endswith("return"):
            continue
        if op.name in (TO_PART, PLACE) or _reads(op, parts):
            parts.update(op.results)
            _mark_all(op)
            continue
        for region in op.regions:
            for inner in region.blocks:
                mark(inner, parts)


def _reads(op: ir.Operation, parts: set[ir.Value]) -> bool:
    """Whether the op, or one in its regions, reads a part from outside of it."""
    if any(v in parts for v in op.operands):
        return True
    return any(
        _reads(view.operation, parts)
        for region in op.regions
        for block in region.blocks
        for view in block.operations
    )


def _mark_all(op: ir.Operation) -> None:
    if op.name not in (TO_PART, FROM_PART, PLACE):
        op.attributes[MANUAL] = ir.UnitAttr.get()
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                _mark_all(view.operation)
