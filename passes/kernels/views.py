"""Where the elements of a value lie in another one that it is only a part of.

A kernel that takes strides reads slices, reshapes and transposes in place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import defining, ints

Steps = tuple[tuple[int, int], ...]
"""A dimension, outermost first: how many there are and how many elements apart."""


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
    """Through the slices, reshapes and transposes that made the value."""
    op = defining(value)
    found = None
    if op is not None and op.name in _THROUGH:
        found = _THROUGH[op.name](op, view_of(op.operands[0]))
    return found or _whole(value)


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


def _whole(value: ir.Value) -> View:
    shape = hlo.shape_of(value)
    steps = [(n, prod(shape[i + 1 :])) for i, n in enumerate(shape)]
    return View(value, 0, tuple(merged([step]) for step in steps))


def _transpose(op: ir.Operation, of: View) -> View:
    return View(of.base, of.offset, tuple(of.dims[d] for d in ints(op, "permutation")))


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


def _reshape(op: ir.Operation, of: View) -> View | None:
    left = list(merged(step for steps in of.dims for step in steps))
    dims = []
    for extent in hlo.shape_of(op.result):
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
    "stablehlo.transpose": _transpose,
    "stablehlo.slice": _slice,
    "stablehlo.reshape": _reshape,
}
