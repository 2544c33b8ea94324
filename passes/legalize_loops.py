"""Loops and branches that IREE 3.13 compiles, and that take nobody's memory.

IREE simplifies an `scf.while` whose body does not read a carried value, or returns for
it what is made outside, into one whose regions disagree: it crashes, or says so. The
reverse of a loop that stops what it carries is one of these: nothing of a step's
cotangent comes from the step behind it. So every value that is carried is read.

What a loop or a branch gives, IREE takes for new memory, and gives it back after the
last read. Where a loop runs no round, or a branch hands on what it found, that memory
is somebody else's: an argument that the caller keeps, or a value that is read later.
So what may come out as it went in goes in as a copy.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis.loops import counter
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


def own_carries(op: ir.Operation) -> None:
    """Copy what a loop that may run no round would give back as it came."""
    if (counted := counter(op)) is not None and counted.trips > 0:
        return
    for i, start in enumerate(list(op.operands)):
        if any(True for _ in op.results[i].uses) and _is_shared(start):
            op.operands[i] = _copy(start)


def own_branches(op: ir.Operation) -> None:
    """Copy what a branch would hand on from outside of it."""
    for region in op.regions:
        block = region.blocks[0]
        *_, end = (view.operation for view in block.operations)
        for i, value in enumerate(list(end.operands)):
            if _is_outside(value, block) and any(True for _ in op.results[i].uses):
                with before(end):
                    end.operands[i] = _copy(value)


def _is_shared(value: Value) -> bool:
    """Whether somebody else has the memory of a value too; a constant is made anew."""
    if isinstance(value.owner, ir.Block):
        return True
    made = value.owner.operation.name not in ("stablehlo.constant", "stablehlo.iota")
    return made and sum(1 for _ in value.uses) > 1


def _copy(x: Value) -> Value:
    """`x` in memory of its own: a choice that no compiler can make."""
    never = hlo.optimization_barrier(hlo.scalar(False, ir.IntegerType.get_signless(1)))
    return hlo.select(never, hlo.zeros(x.type), x)


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
