"""Loops and branches that IREE 3.13 compiles, and that take nobody's memory.

IREE simplifies an `scf.while` whose body does not read a carried value, or returns for
it what is made outside, into one whose regions disagree: it crashes, or says so. The
reverse of a loop that stops what it carries is one of these: nothing of a step's
cotangent comes from the step behind it. So every value that is carried is read.

What a loop or a branch gives, IREE takes for new memory, and gives it back after the
last read. Where a loop runs no round, or a branch hands on what it found, that memory
is somebody else's: an argument that the caller keeps, or a value that is read later.
So what may come out as it went in goes in as a copy. What comes out twice is two
tensors to IREE, too, and it writes over one of them: the second is a copy.

What follows from positions alone IREE makes again in each submission that reads it. The
body of a loop is a submission of its own, and where it reads positions that ops around
the loop read as well, IREE forgets one of these ("streamable op expected to be in an
execution region"). So such positions are copied, too: the copy is made once.

In programs with loops and branches nothing is computed ahead of a call (`IN_PLACE` in
compiler/iree.py). What is made of constants and positions alone, IREE then writes out
again for each op that reads it, and that again for each of its readers: a random key
that is a constant takes two to the power of its rounds, 10 GB and more. So what would
be written out as very many ops stands behind a barrier, and is made once.
"""

from collections.abc import Iterable, Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis.loops import counter
from pcp.passes.core import constants, rewriting
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.rewriting import before, defining, integer, operations
from pcp.passes.core.walk import CONTROL_FLOW, block_of, walk
from pcp.passes.legalize.legalize_pads import is_shared_fill

Value = ir.Value
BARRIER = "optimization_barrier"
RARE = 1_870_000_000  # numbers from here on are nobody's
MOST = 1000  # ops; a constant threefry key comes to 10^9, a sine of positions to 10^7

_WRITTEN_OUT = ELEMENTWISE | {"stablehlo.broadcast_in_dim", "stablehlo.reshape"}


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


def own_handed_on(op: ir.Operation) -> None:
    """Copy what a round, or a branch, gives twice: IREE may write over one of them."""
    for end in _ends(op):
        taken: set[Value] = set()
        for i, value in enumerate(list(end.operands)):
            if not _is_seen(op, i):
                continue
            behind = _behind_views(value)
            if behind in taken and hlo.shape_of(value):
                with before(end):
                    end.operands[i] = _copy(value)
            taken.add(behind)


def _is_seen(op: ir.Operation, place: int) -> bool:
    """Whether anything reads what a loop or a branch gives there."""
    seen = [op.results[place]]
    if op.name == "stablehlo.while":
        seen += [region.blocks[0].arguments[place] for region in op.regions]
    return any(True for value in seen for _ in value.uses)


def _behind_views(value: Value) -> Value:
    """What a value is another look at."""
    made = defining(value)
    if made is None or made.name not in _VIEWS:
        return value
    return _behind_views(made.operands[ir.OpResult(value).result_number])


def own_updated(op: ir.Operation) -> None:
    """Copy what an op writes over where others read it, in another submission.

    In one submission ops keep the program's order. A loop, a branch and an exchange
    end it; what stands behind waits for what it reads, but not for other readers of
    what it writes over. Those may stand in the loop or branch that made it.
    """
    inputs = len(op.results)
    for i, value in enumerate(list(op.operands)[:inputs]):
        apart = _is_outside(value, op.block) or _has_submissions(op.block)
        read = apart and _is_read_elsewhere(value)
        if read or _is_one_buffer(value) or _is_sorted_over(op, value):
            op.operands[i] = _copy(value)


def own_positions(function: ir.Operation) -> None:
    """Copy each iota that a loop or a branch reads, and the ops around it read too.

    What is made of it in front of the loop counts as it does: IREE may make that again
    inside. An equal iota inside counts, too: compilers merge the two.
    """
    ops = operations(function)
    nested = [op for op in ops if op.name in CONTROL_FLOW]
    if not nested:
        return
    alike: dict[tuple[str, int], list[ir.Operation]] = {}
    for op in ops:
        if op.name == "stablehlo.iota" and not _is_copied(op.results[0]):
            kind = str(op.results[0].type), integer(op, "iota_dimension")
            alike.setdefault(kind, []).append(op)
    merged = [*map(_merged, alike.values())]
    captured = {value for op in nested for value in rewriting.captures(op)}
    sources = _sources(captured)
    for iotas in merged:
        inside = any(op.results[0] in sources for op in iotas) or len(iotas) > 1
        for op in iotas:
            if inside and _is_read_beside(op, captured):
                with before(op):
                    rewriting.replace(op, [_copy(op.clone().results[0])])


def hold_made_of_constants(function: ir.Operation) -> None:
    """A barrier behind what IREE would write out as over `MOST` ops for each reader."""
    written: dict[Value, int] = {}  # what needs nothing that is given: as so many ops
    for op in [*walk(block_of(function, 0))]:
        if op.name in ("stablehlo.constant", "stablehlo.iota"):
            written[op.results[0]] = 1
        elif op.name in _WRITTEN_OUT and all(v in written for v in op.operands):
            many = 1 + sum(written[v] for v in op.operands)
            if many <= MOST:
                written[op.results[0]] = many
                continue
            with before(op):
                rewriting.replace(op, [hlo.optimization_barrier(op.clone().results[0])])


def _merged(alike: Sequence[ir.Operation]) -> list[ir.Operation]:
    """The first of each block, which takes the place of the others."""
    first: dict[ir.Block, ir.Operation] = {}
    for op in alike:
        if (kept := first.setdefault(op.block, op)) is not op:
            rewriting.replace(op, [*kept.results])
    return [*first.values()]


def _sources(values: Iterable[Value]) -> set[Value]:
    """These values, and all that they are made of without a loop or a branch."""
    found, left = set[Value](), [*values]
    while left:
        if (value := left.pop()) in found:
            continue
        found.add(value)
        made = value.owner
        if isinstance(made, ir.Operation | ir.OpView):
            if made.operation.name not in CONTROL_FLOW:
                left += made.operation.operands
    return found


def _is_read_beside(iota: ir.Operation, captured: set[Value]) -> bool:
    """Whether an op of its block reads it that no region needs.

    It is the end of a chain of ops, as what a loop begins with, or a result.
    """
    found, left = set[Value](), [*iota.results]
    while left:
        if (value := left.pop()) in found:
            continue
        found.add(value)
        for use in value.uses:
            reader = use.owner.operation
            if reader.block != iota.block:
                continue
            if reader.name in CONTROL_FLOW or not len(reader.results):
                return True
            left += [v for v in reader.results if v not in captured]
    return False


def _is_one_buffer(value: Value) -> bool:
    """Whether it is a constant that has no memory of its own (see legalize_pads)."""
    if (made := defining(value, "complex")) is not None:
        return all(constants.splat(part) is not None for part in made.operands)
    return constants.splat(value) is not None and is_shared_fill(value)


def _is_sorted_over(op: ir.Operation, value: Value) -> bool:
    """Whether a sort writes over positions that something else reads as well.

    IREE has one buffer for equal iotas, sorts in it, and later readers find the order.
    """
    made = defining(value, "iota")
    if op.name != "stablehlo.sort" or made is None:
        return False
    alike = (o for o in operations(_function(op)) if _is_same_iota(o, made))
    return sum(1 for other in alike for _ in other.results[0].uses) > 1


def _is_same_iota(op: ir.Operation, made: ir.Operation) -> bool:
    if op.name != made.name or op.results[0].type != made.results[0].type:
        return False
    return integer(op, "iota_dimension") == integer(made, "iota_dimension")


def _has_submissions(block: ir.Block) -> bool:
    names = (view.operation.name for view in block.operations)
    return any(n in CONTROL_FLOW or n.startswith("pcp.") for n in names)


def _is_read_elsewhere(value: Value) -> bool:
    """Whether the memory of a value has another reader, seen through views."""
    while sum(1 for _ in value.uses) == 1:
        made = defining(value)
        if made is not None and made.name in CONTROL_FLOW:
            place = ir.OpResult(value).result_number
            return any(_is_read_elsewhere(end.operands[place]) for end in _ends(made))
        if made is None or made.name not in _VIEWS:
            return False
        value = made.operands[ir.OpResult(value).result_number]
    return not _is_constant(value)


def _ends(op: ir.Operation) -> list[ir.Operation]:
    """What a loop's body or the branches return."""
    bodies = op.regions if op.name != "stablehlo.while" else [op.regions[1]]
    return [[*region.blocks[0].operations][-1].operation for region in bodies]


_VIEWS = (
    "stablehlo.bitcast_convert",
    "stablehlo.optimization_barrier",
    "stablehlo.reshape",
)


def _is_shared(value: Value) -> bool:
    """Whether somebody else has the memory of a value too."""
    if isinstance(value.owner, ir.Block):
        return True
    return not _is_constant(value) and sum(1 for _ in value.uses) > 1


def _is_constant(value: Value) -> bool:
    """Whether a value is made anew wherever it is read."""
    made = defining(value)
    return made is not None and made.name in ("stablehlo.constant", "stablehlo.iota")


def _copy(x: Value) -> Value:
    """`x` in memory of its own: a choice that no compiler can make.

    By a number that no other copy of the function has, so that none is merged, and no
    loop begins with: of a held constant that a loop begins with as well, IREE makes a
    module that cannot be loaded.
    """
    i32 = ir.IntegerType.get_signless(32)
    number = hlo.optimization_barrier(hlo.scalar(RARE + _barriers(), i32))
    never = hlo.compare("LT", number, hlo.scalar(0, i32), "SIGNED")
    return hlo.select(never, hlo.zeros(x.type), x)


def _is_copied(x: Value) -> bool:
    """Whether nothing but a copy of it reads it."""
    readers = [use.owner.operation for use in x.uses]
    if len(readers) != 1 or readers[0].name != "stablehlo.select":
        return False
    never = defining(readers[0].operands[0], "compare")
    return never is not None and defining(never.operands[0], BARRIER) is not None


def _barriers() -> int:
    """How many barriers the function has in which an op is being made."""
    function = _function(ir.InsertionPoint.current.block.owner.operation)
    return sum(op.name == f"stablehlo.{BARRIER}" for op in operations(function))


def _function(op: ir.Operation) -> ir.Operation:
    while op.name != "func.func":
        op = op.parent.operation
    return op


def _is_at_risk(
    op: ir.Operation, i: int, argument: Value, returned: Value, block: ir.Block
) -> bool:
    if any(True for _ in argument.uses):
        return _is_outside(returned, block)
    asked = op.regions[0].blocks[0].arguments[i]
    return any(True for value in (op.results[i], asked) for _ in value.uses)


def _is_outside(value: Value, block: ir.Block) -> bool:
    """Whether a value is made in front of the loop."""
    owner = value.owner
    return (owner if isinstance(owner, ir.Block) else owner.operation.block) != block
