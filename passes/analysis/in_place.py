"""Which carries of loops are stacks that are filled where they lie.

Such a stack is written and nothing else: a row a round, each row once, all of them. So
no row needs to be there before, nobody can read one too late, and what the loop begins
with says no more than what a round adds to (`Stack.read_before`).

A module's stacks are filled in place if nothing else in it writes over what a loop may
carry or leave: who says of one tensor where it lies says it of all that are read
with it, and then IREE takes it upon itself which of these to copy. It errs where one
value, or equal constants, begin two carries, and where what is written over is read in
another submission.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis.cost import size_bytes, update_of
from pcp.passes.analysis.loops import counter, returned
from pcp.passes.analysis.update_overlap import reads_the_same
from pcp.passes.core import constants, fold, functions
from pcp.passes.core.donation import OUTPUT
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.rewriting import HOLD, operations
from pcp.passes.core.rewriting import functions as functions_of
from pcp.passes.core.walk import CONTROL_FLOW, block_of

Value = ir.Value

Place = tuple[ir.Operation, int]
"""A loop, and which of its carries."""

_LOOP = "stablehlo.while"
_WRITE = "stablehlo.dynamic_update_slice"
_READ = "stablehlo.dynamic_slice"


@dataclass(frozen=True)
class Stack:
    """A stack that a loop fills, or loops in one another: the outermost is first."""

    places: tuple[Place, ...]
    write: ir.Operation

    @property
    def read_before(self) -> list[ir.Operation]:
        """What reads the row that will be written."""
        readers = (use.owner.operation for use in self.write.operands[0].uses)
        return [op for op in readers if op != self.write]


def stacks(module: ir.Operation) -> list[Stack]:
    """The stacks that a module's loops fill in place: of public functions, or none."""
    every = list(functions_of(module))
    found = {function: _filled_by(function) for function in every}
    having = [function for function in every if found[function]]
    own = {stack.write for function in having for stack in found[function]}
    others = (op for f in every for op in operations(f) if op not in own)
    if any(map(_stores_in_arguments, having)) or not having:
        return []
    if any(map(_may_write_over_carried, others)):
        return []
    return [stack for function in having for stack in found[function]]


def stacks_of(loop: ir.Operation) -> frozenset[int]:
    """Of a loop's carries those that are filled in place."""
    module = loop
    while module.parent is not None:
        module = module.parent.operation
    if module.name != "builtin.module":
        return frozenset()
    places = (place for stack in stacks(module) for place in stack.places)
    return frozenset(place for other, place in places if other == loop)


def _filled_by(function: ir.Operation) -> list[Stack]:
    if not functions.is_public(function):
        return []
    loops = [op for op in operations(function) if op.name == _LOOP]
    places = [(loop, i) for loop in loops for i in range(len(loop.results))]
    return [stack for place in places if (stack := _filled(place)) is not None]


def _filled(place: Place) -> Stack | None:
    """The stack that begins as this carry, if it is one."""
    stack = _written(place)
    if stack is None or not hlo.size(stack.write.operands[0]):
        return None
    readers = stack.read_before
    once = sum(1 for _ in stack.write.operands[0].uses) == len(readers) + 1
    own = all(_reads_own_row(op, stack.write) for op in readers)
    return stack if once and own and _fills(stack) else None


def _written(place: Place) -> Stack | None:
    """What makes a carry's next value by updates of it, for nobody else."""
    loop, index = place
    body = block_of(loop, 1)
    carry, end = body.arguments[index], returned(body)[index]
    if any(True for _ in block_of(loop, 0).arguments[index].uses):
        return None
    if isinstance(end.owner, ir.Block) or not _is_read_once(end):
        return None
    op, result = end.owner.operation, ir.OpResult(end).result_number
    if op.name not in (_WRITE, _LOOP):  # of a branch, results are no operands' next
        return None
    if op.block != body or op.operands[result] != carry:
        return None
    if op.name == _WRITE:
        return Stack((place,), op)
    if not _is_read_once(carry):
        return None
    inner = _written((op, result))
    return None if inner is None else Stack((place, *inner.places), inner.write)


def _is_read_once(value: Value) -> bool:
    return sum(1 for _ in value.uses) == 1


def _reads_own_row(op: ir.Operation, write: ir.Operation) -> bool:
    """Whether it reads, in the round itself, what the update writes over."""
    return op.block == write.block and reads_the_same(write, op)


def _fills(stack: Stack) -> bool:
    """Whether an update of one row takes another one in each round, and all."""
    shape, row = (hlo.shape_of(v) for v in list(stack.write.operands)[:2])
    (axis, *more) = [d for d, n in enumerate(shape) if row[d] != n] or [-1]
    if axis < 0 or more or row[axis] != 1:
        return False
    counted = _rounds([loop for loop, _ in stack.places], shape[axis])
    if counted is None:
        return False
    at = _by_round(stack.write.operands[2 + axis], counted)
    return at is not None and np.array_equal(np.sort(at), np.arange(shape[axis]))


def _rounds(loops: Sequence[ir.Operation], rows: int) -> dict[Value, np.ndarray] | None:
    """The counters of loops in one another in each round, if there are so many."""
    found = [counter(loop) for loop in loops]
    courses = [course for course in found if course is not None]
    trips = [course.trips for course in courses]
    if len(courses) < len(found) or prod(trips) != rows:
        return None
    counted: dict[Value, np.ndarray] = {}
    for loop, course, round_ in zip(loops, courses, np.indices(trips), strict=True):
        value = block_of(loop, 1).arguments[course.index]
        dtype = constants.dtype_of(hlo.element_type(value))
        last = course.start + (course.trips - 1) * course.step
        if dtype is None or not _holds(dtype, (course.start, last)):
            return None
        numbers = course.start + course.step * round_.reshape(-1)
        counted[value] = np.asarray(numbers, dtype)
    return counted


def _by_round(
    value: Value, counted: dict[Value, np.ndarray], depth: int = 16
) -> np.ndarray | None:
    """An integer of a loop's body in each round, if the counters say it."""
    if value in counted:
        return counted[value]
    if hlo.shape_of(value) or depth == 0:
        return None
    if (known := constants.array(value)) is not None:
        (rounds,) = next(iter(counted.values())).shape
        return np.full(rounds, known)
    if isinstance(value.owner, ir.Block) or value.owner.name not in ELEMENTWISE:
        return None
    op = value.owner.operation
    inputs = [_by_round(x, counted, depth - 1) for x in op.operands]
    given = [x for x in inputs if x is not None]
    return fold.apply(op, given) if len(given) == len(inputs) else None


def _holds(dtype: np.dtype, values: Sequence[int]) -> bool:
    if not np.issubdtype(dtype, np.integer):
        return False
    limits = np.iinfo(dtype)
    return all(limits.min <= x <= limits.max for x in values)


# --- what else is written over ---

#: Beside updates, what IREE may compute in its operands' memory.
_INSIDE = frozenset(
    f"stablehlo.{name}"
    for name in (
        "cholesky custom_call fft rng_bit_generator select_and_scatter sort "
        "triangular_solve"
    ).split()
) | {"chlo.top_k"}
_INSIDE_DIALECTS = ("flow.", "iree_linalg_ext.", "linalg.", "tensor.")
#: What may turn out to be no more than one of its operands.
_FOLDING = (
    ELEMENTWISE
    | {HOLD, "pcp.stop_gradient"}
    | {
        f"stablehlo.{name}"
        for name in (
            "broadcast_in_dim concatenate dynamic_slice dynamic_update_slice gather "
            "pad reduce reshape reverse scatter slice transpose"
        ).split()
    }
)
#: Of these, those that never are.
_OPAQUE = frozenset(
    f"stablehlo.{name}"
    for name in (
        "cbrt cosine exponential exponential_minus_one log log_plus_one logistic "
        "negate rsqrt sine sqrt tan tanh"
    ).split()
)


def _may_write_over_carried(op: ir.Operation) -> bool:
    """Whether an op may write over what a loop or a branch hands on."""
    if op.name in _INSIDE or op.name.startswith(_INSIDE_DIALECTS):
        written = list(op.operands)
    else:
        places = range(len(op.operands))
        written = [op.operands[i] for i in places if update_of(op, i) is not None]
    return any(_is_carried(root) for value in written for root in _roots(value))


def _is_carried(value: Value) -> bool:
    """Whether a loop, a branch or a call hands it on."""
    owner = value.owner
    if not isinstance(owner, ir.Block):
        return owner.operation.name in (*CONTROL_FLOW, "func.call")
    around = owner.owner.operation
    if around.name == "func.func":
        return not functions.is_public(around)
    return around.name in CONTROL_FLOW


def _roots(value: Value) -> set[Value]:
    """The value, and all that it may turn out to be."""
    left, found = [value], set[Value]()
    while left:
        one = left.pop()
        if one in found:
            continue
        found.add(one)
        if isinstance(one.owner, ir.Block):
            continue
        op = one.owner.operation
        folds = op.name in _FOLDING or op.name.startswith(("pcp.", "util."))
        if folds and op.name not in _OPAQUE:
            size = size_bytes(one)
            left += [x for x in op.operands if size_bytes(x) == size]
    return found


def _stores_in_arguments(function: ir.Operation) -> bool:
    """Whether what a loop leaves goes to the memory of an argument, read or not."""
    end = returned(functions.entry(function))
    said = functions.argument_attributes(function)
    places = [ir.IntegerAttr(a[OUTPUT]).value for a in said if OUTPUT in a]
    return any(_is_carried(root) for i in places for root in _roots(end[i]))
