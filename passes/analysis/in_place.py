"""Which carries of a loop are stacks that it fills where they lie.

Such a stack is written and nothing else: a row a round, each row once, all of them. So
no row needs to be there before, nobody can read one too late, and what the loop begins
with says no more than what a round adds to (`read_before`).
"""

from collections.abc import Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis.cost import size_bytes, update_of
from pcp.passes.analysis.loops import Counter, counter, invariant, returned
from pcp.passes.core import constants, fold, functions
from pcp.passes.core.donation import OUTPUT
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.rewriting import HOLD
from pcp.passes.core.walk import CONTROL_FLOW, block_of

Value = ir.Value

_WRITE = "stablehlo.dynamic_update_slice"
_READ = "stablehlo.dynamic_slice"
#: What may turn out to be its operand again, besides what maps element by element.
_MOVING = frozenset(
    f"stablehlo.{name}"
    for name in (
        "broadcast_in_dim concatenate dynamic_slice gather pad reduce reshape reverse "
        "slice transpose"
    ).split()
)


def filled(loop: ir.Operation) -> list[bool]:
    """Of each carry of a `stablehlo.while`, whether it is such a stack.

    What the loop leaves of it must not be written over later, either.
    """
    course = counter(loop)
    ends = returned(block_of(loop, 1))
    if course is None:
        return [False] * len(ends)
    return [_is_filled(loop, place, course) for place in range(len(ends))]


def _is_filled(loop: ir.Operation, place: int, course: Counter) -> bool:
    if any(True for _ in block_of(loop, 0).arguments[place].uses):
        return False
    if (write := writer(loop, place)) is None:
        return False
    readers = [use.owner.operation for use in write.operands[0].uses]
    return (
        readers.count(write) == 1
        and all(op == write or _reads_own_row(op, write) for op in readers)
        and _fills(write, loop, course)
        and not _is_updated(loop.results[place])
    )


def writer(loop: ir.Operation, place: int) -> ir.Operation | None:
    """The op that makes a carry's next value by an update of it, for nobody else."""
    body = block_of(loop, 1)
    end = returned(body)[place]
    if isinstance(end.owner, ir.Block) or end.owner.name != _WRITE:
        return None
    write = end.owner.operation
    alone = sum(1 for _ in end.uses) == 1
    return write if alone and write.operands[0] == body.arguments[place] else None


def read_before(write: ir.Operation) -> list[ir.Operation]:
    """What reads the row that an update will write."""
    readers = (use.owner.operation for use in write.operands[0].uses)
    return [op for op in readers if op != write]


def _reads_own_row(op: ir.Operation, write: ir.Operation) -> bool:
    """Whether it reads, in the round itself, what the update writes over."""
    return (
        op.name == _READ
        and op.block == write.block
        and op.results[0].type == write.operands[1].type
        and list(op.operands)[1:] == list(write.operands)[2:]
    )


def _fills(write: ir.Operation, loop: ir.Operation, course: Counter) -> bool:
    """Whether an update of one row takes another one in each round, and all."""
    stack, row = (hlo.shape_of(v) for v in list(write.operands)[:2])
    (axis, *more) = [d for d, n in enumerate(stack) if row[d] != n] or [-1]
    if axis < 0 or more or row[axis] != 1 or course.trips != stack[axis]:
        return False
    at = _by_round(write.operands[2 + axis], loop, course)
    return at is not None and np.array_equal(np.sort(at), np.arange(stack[axis]))


def _by_round(
    value: Value, loop: ir.Operation, course: Counter, depth: int = 16
) -> np.ndarray | None:
    """An integer of a loop's body in each of its rounds, if the counter says it."""
    if hlo.shape_of(value) or depth == 0:
        return None
    dtype = constants.dtype_of(hlo.element_type(value))
    if value == block_of(loop, 1).arguments[course.index]:
        last = course.start + (course.trips - 1) * course.step
        if dtype is None or not _holds(dtype, (course.start, last)):
            return None
        return np.asarray(course.start + course.step * np.arange(course.trips), dtype)
    if (known := constants.array(value)) is not None:
        return np.full(course.trips, known)
    if isinstance(value.owner, ir.Block) or value.owner.name not in ELEMENTWISE:
        return None
    op = value.owner.operation
    inputs = [_by_round(x, loop, course, depth - 1) for x in op.operands]
    known = [x for x in inputs if x is not None]
    return fold.apply(op, known) if len(known) == len(inputs) else None


def _holds(dtype: np.dtype, values: Sequence[int]) -> bool:
    if not np.issubdtype(dtype, np.integer):
        return False
    limits = np.iinfo(dtype)
    return all(limits.min <= x <= limits.max for x in values)


# --- what becomes of it ---


def _is_updated(value: Value) -> bool:
    """Whether anything may write over what a loop leaves, under whatever name."""
    left, seen = [value], set[Value]()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        for use in one.uses:
            op = use.owner.operation
            if update_of(op, use.operand_number) is not None:
                return True
            names = _names(op, use.operand_number)
            if names is None:
                return True
            left += [x for x in names if size_bytes(x) == size_bytes(one)]
    return False


def _names(op: ir.Operation, place: int) -> list[Value] | None:
    """The values that may be an operand by another name; None where nobody knows."""
    if op.name == "func.return":
        return None if _is_given_on(op, place) else []
    if op.name == "stablehlo.while":
        if not invariant(op)[place]:
            return None
        insides = (block_of(op, region).arguments[place] for region in range(2))
        return [op.results[place], *insides]
    if op.name == "stablehlo.return":
        return _names_around(op, place)
    if op.name in CONTROL_FLOW or op.name == "func.call":
        return None
    if op.name in ELEMENTWISE or op.name in _MOVING or op.name == HOLD:
        return list(op.results)
    return []


def _names_around(end: ir.Operation, place: int) -> list[Value] | None:
    """Of what a region gives: what goes around a loop as it came has a name by then."""
    around = end.parent
    if around is None or around.name not in CONTROL_FLOW:
        return []
    handed_on = around.name == "stablehlo.while" and invariant(around.operation)[place]
    return [] if handed_on else None


def _is_given_on(end: ir.Operation, place: int) -> bool:
    """Whether a result goes to IR that is not seen, or to an argument's memory."""
    function = end.parent.operation
    said = functions.argument_attributes(function)
    stored = [ir.IntegerAttr(a[OUTPUT]).value for a in said if OUTPUT in a]
    return place in stored or not functions.is_public(function)
