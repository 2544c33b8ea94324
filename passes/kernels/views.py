"""Where the elements of a value lie in another one that it is made of.

A kernel that takes strides reads slices, reshapes, transposes and what is repeated in
place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import defining, ints

Steps = tuple[tuple[int, int], ...]
"""A dimension, outermost first: how many there are and how many elements apart."""

Over = tuple[tuple[int, int, int], ...]
"""Steps through two values: how many, how far apart in the first and in the second."""


@dataclass(frozen=True)
class View:
    """A value as elements of `base`, from `offset` on; a row of `dims` a dimension."""

    base: ir.Value
    offset: int
    dims: tuple[Steps, ...]

    def along(self, *groups: Sequence[int]) -> tuple[Steps, ...]:
        """Each group of dimensions as one."""
        return tuple(
            merged(step for d in group for step in self.dims[d]) for group in groups
        )


def view_of(value: ir.Value) -> View:
    """Through the slices, reshapes, transposes and repetitions that made the value."""
    op = defining(value)
    found = None
    if op is not None and op.name in _THROUGH:
        found = _THROUGH[op.name](op, view_of(op.operands[0]))
    return found or whole(value)


def moved(op: ir.Operation, view: View, *, back: bool = False) -> View | None:
    """The view of what a reshape or transpose makes of a value; None for other ops.

    `back`: the view is that of the result, and what is asked for the operand's.
    """
    if op.name == "stablehlo.reshape":
        return _reshaped(view, hlo.shape_of(op.operands[0] if back else op.result))
    if op.name != "stablehlo.transpose":
        return None
    order = ints(op, "permutation")
    if back:
        order = [order.index(d) for d in range(len(order))]
    return View(view.base, view.offset, tuple(view.dims[d] for d in order))


def paired(first: Steps, second: Steps) -> Over | None:
    """The same places of two values, stepped through at once."""
    found, left = [], list(second)
    for count, apart in first:
        if (taken := _taken(left, count)) is None:
            return None
        inner = count
        for many, step in taken:
            inner //= many
            found.append((many, apart * inner, step))
    return None if left else tuple(found)


def joined(steps: Iterable[tuple[int, int, int]]) -> Over:
    """The same by as few steps as they are; the second value repeats along others."""
    found: list[tuple[int, int, int]] = []
    for count, first, second in sorted(steps, key=lambda step: -step[1]):
        if count == 1 or second == 0:
            continue
        if found and found[-1][1:] == (count * first, count * second):
            found[-1] = found[-1][0] * count, first, second
        else:
            found.append((count, first, second))
    return tuple(found)


def step_of(over: Over, first: int) -> int:
    """How far apart in the second value what is `first` apart in the first one is."""
    for count, apart, step in over:
        if apart <= first < apart * count:
            return step * (first // apart)
    return 0


def merged(steps: Iterable[tuple[int, int]]) -> Steps:
    """The same places by as few steps as they are."""
    found: list[tuple[int, int]] = []
    for count, apart in steps:
        if count == 1:
            continue
        if found and found[-1][1] == count * apart:
            found[-1] = found[-1][0] * count, apart
        else:
            found.append((count, apart))
    return tuple(found)


def whole(value: ir.Value) -> View:
    """Of a value itself."""
    shape = hlo.shape_of(value)
    steps = [(n, prod(shape[i + 1 :])) for i, n in enumerate(shape)]
    return View(value, 0, tuple(merged([step]) for step in steps))


def _slice(op: ir.Operation, of: View) -> View | None:
    offset, dims = of.offset, []
    shape = hlo.shape_of(op.operands[0])
    places = (ints(op, name) for name in ("start_indices", "limit_indices", "strides"))
    for extent, steps, first, last, by in zip(shape, of.dims, *places, strict=True):
        if (first, last, by) == (0, extent, 1):
            dims.append(steps)
            continue
        if by != 1 or len(steps) > 1:
            return None
        apart = steps[0][1] if steps else 0
        offset += first * apart
        dims.append(merged([(last - first, apart)]))
    return View(of.base, offset, tuple(dims))


def _repeated(op: ir.Operation, of: View) -> View:
    given, shape = ints(op, "broadcast_dimensions"), hlo.shape_of(op.operands[0])
    dims = []
    for d, extent in enumerate(hlo.shape_of(op.result)):
        same = d in given and shape[given.index(d)] == extent
        dims.append(of.dims[given.index(d)] if same else merged([(extent, 0)]))
    return View(of.base, of.offset, tuple(dims))


def _reshaped(of: View, shape: Sequence[int]) -> View | None:
    left = list(merged(step for steps in of.dims for step in steps))
    dims = []
    for extent in shape:
        if (taken := _taken(left, extent)) is None:
            return None
        dims.append(taken)
    return View(of.base, of.offset, tuple(dims))


def _taken(left: list[tuple[int, int]], extent: int) -> Steps | None:
    """The first steps of `left` that are `extent` places, which it has no longer."""
    taken = []
    while extent > 1:
        if not left:
            return None
        count, apart = left.pop(0)
        if count > extent:
            if count % extent:
                return None
            left.insert(0, (count // extent, apart))
            count, apart = extent, apart * (count // extent)
        if extent % count:
            return None
        taken.append((count, apart))
        extent //= count
    return merged(taken)


_THROUGH = {
    "stablehlo.broadcast_in_dim": _repeated,
    "stablehlo.reshape": moved,
    "stablehlo.slice": _slice,
    "stablehlo.transpose": moved,
}
