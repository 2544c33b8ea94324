"""Loops that IREE 3.13 compiles: every value that is carried is read in the body.

IREE simplifies an `scf.while` whose body does not read a carried value, or returns for
it what is made outside, into one whose regions disagree: it crashes, or says so. The
reverse of a loop that stops what it carries is one of these: nothing of a step's
cotangent comes from the step behind it.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.rewriting import before

Value = ir.Value


def read_carries(op: ir.Operation) -> None:
    """Tie what a body returns to what it was given, where it does not read that."""
    block = op.regions[1].blocks[0]
    *_, end = (view.operation for view in block.operations)
    for i, (argument, returned) in enumerate(
        zip(block.arguments, list(end.operands), strict=True)
    ):
        if returned != argument and _is_at_risk(op, i, argument, returned, block):
            with before(end):
                types = [returned.type, argument.type]
                tied = hlo.op("optimization_barrier", [returned, argument], types)
            end.operands[i] = tied.results[0]


def _is_at_risk(
    op: ir.Operation, i: int, argument: Value, returned: Value, block: ir.Block
) -> bool:
    read = any(True for _ in argument.uses)
    if not read and any(True for _ in op.results[i].uses):
        return True
    return read and _is_outside(returned, block)


def _is_outside(value: Value, block: ir.Block) -> bool:
    """Whether a value is made in front of the loop."""
    owner = value.owner
    return (owner if isinstance(owner, ir.Block) else owner.operation.block) != block
