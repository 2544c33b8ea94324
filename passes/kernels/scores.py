"""The scores of attention: from the exponentials back to the product of q and k.

On the way they are scaled, and some are hidden: numbers are added to them or stand in
their place. Where a dimension of a value lies is told by steps through the
exponentials, from pair to pair of a row and a column: a row is `columns` apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core import fold
from pcp.passes.core.constants import splat
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.rewriting import defining, ints
from pcp.passes.core.walk import block_of
from pcp.passes.kernels.views import (
    Over,
    Steps,
    View,
    joined,
    merged,
    moved,
    paired,
    view_of,
)

MOST_PAIRS = 1 << 24
"""Positions of a mask that are looked at."""


class Matrix(NamedTuple):
    """Where what differs by pairs lies in `base`; of operands `width` numbers each.

    Those are `apart`.
    """

    base: ir.Value
    offset: int
    over: Over
    width: int = 1
    apart: int = 1


class Hidden(NamedTuple):
    """Numbers that are added to scores, or a mask by which one number replaces them."""

    matrix: Matrix
    number: float | None = None
    when: bool = True

    def ahead(self, rows: int, columns: int) -> int | None:
        """How far ahead each row sees, if that is all that is said."""
        pairs, over = rows * columns, self.matrix.over
        if pairs > MOST_PAIRS or any((n - 1) * first >= pairs for n, first, _ in over):
            return None  # not the same for all batches
        values = fold.evaluate(_settled(self.matrix.base), MOST_PAIRS)
        if values is None:
            return None
        pair = np.arange(pairs).reshape(rows, columns)
        places = sum((pair // first % n * step for n, first, step in over), 0 * pair)
        found = values.reshape(-1)[self.matrix.offset + places]
        if self.number is not None:
            visible = found != self.when
        elif np.isin(found, (0, -np.inf)).all():
            visible = found == 0
        else:
            return None
        ahead = int(visible[0].sum()) - 1
        same = np.array_equal(visible, np.tri(rows, columns, ahead, dtype=bool))
        return ahead if ahead >= 0 and same else None


class Level(NamedTuple):
    """The op that tells rows of minus infinities alone, whose scores are made zeros.

    `dims`: how its dimensions lie. `mask`: what makes the zeros.
    """

    op: ir.Operation
    dims: tuple[Steps, ...]
    mask: Hidden


@dataclass
class Scores:
    """The product that the scores are, how its dimensions lie, and what was done to it.

    `hidden`: outermost first. `level`: what is done last of all.
    """

    product: ir.Operation
    dims: tuple[Steps, ...]
    scale: float = 1.0
    hidden: list[Hidden] = field(default_factory=list)
    level: Level | None = None

    @property
    def is_changed(self) -> bool:
        """Whether something stands in the place of some."""
        return bool(self.hidden) or self.level is not None


def behind(value: ir.Value, view: View, *, added: bool = False) -> Scores | None:
    """How scores were made, through what a kernel does, too; `added`: added to."""
    if (op := defining(value)) is None:
        return None
    if op.name == "stablehlo.dot_general":
        return Scores(op, view.dims)
    if op.name == "stablehlo.select":
        return _chosen(op, view, added)
    if op.name == "stablehlo.add" and not added:
        for score, number in (op.operands, reversed(list(op.operands))):
            if (found := behind(score, view, added=True)) is not None:
                matrix = matrix_of(number, view)
                return found if _hide(found, matrix) else None
        return None
    if (inner := moved(op, view, back=True)) is not None:
        return behind(op.operands[0], inner, added=added)
    base, factor = scaled(value)
    if base == value or (found := behind(base, view, added=added)) is None:
        return None
    found.scale *= factor
    return None if found.is_changed else found


def _chosen(op: ir.Operation, view: View, added: bool) -> Scores | None:
    mask, yes, no = op.operands
    for hidden, score, when in ((yes, no, True), (no, yes, False)):
        if (number := splat(hidden)) is None:
            continue
        if (found := behind(score, view, added=added)) is None:
            return None
        matrix = matrix_of(mask, view)
        if when and number == 0 and matrix is not None and found.level is None:
            found.level = _level(mask, score, view, Hidden(matrix, 0.0))
            return found if found.level else None
        return found if number < 0 and _hide(found, matrix, number, when) else None
    return None


def _hide(
    found: Scores, matrix: Matrix | None, number: float | None = None, when: bool = True
) -> bool:
    """Note it."""
    if matrix is None or found.level is not None:
        return False
    found.hidden.insert(0, Hidden(matrix, number, when))
    return True


def _level(
    mask: ir.Value, scores: ir.Value, view: View, hidden: Hidden
) -> Level | None:
    """Whether the mask is that of rows of nothing but minus infinity."""
    if (row := row_of(mask, view)) is None:
        return None
    reduce = defining(row[0], "reduce")
    if reduce is None or len(reduce.operands) != 2 or splat(reduce.operands[1]) != 1:
        return None
    low = defining(reduce.operands[0], "compare")
    if low is None or low.operands[0] != scores or splat(low.operands[1]) != -np.inf:
        return None
    if fold.direction(low) != "EQ" or body_kind(reduce.regions[0].blocks[0]) != "and":
        return None
    dims = reduced(reduce, view)
    return Level(reduce, dims, hidden) if dims == row[1] else None


def scaled(value: ir.Value) -> tuple[ir.Value, float]:
    """What is multiplied by or divided by numbers, and by what."""
    factor = 1.0
    while (op := defining(value)) is not None:
        if op.name not in ("stablehlo.multiply", "stablehlo.divide"):
            break
        left, right = op.operands
        number = splat(right)
        if number is None and op.name == "stablehlo.multiply":
            left, number = right, splat(left)
        if not number:
            break
        divides = op.name == "stablehlo.divide"
        value, factor = left, factor / number if divides else factor * number
    return value, factor


# --- rows, products, operands


def row_of(value: ir.Value, view: View) -> tuple[ir.Value, tuple[Steps, ...]] | None:
    """What is spread over a value of this view along columns, and how it lies."""
    spread = defining(value, "broadcast_in_dim")
    if spread is None:
        return None
    inner, shape = spread.operands[0], hlo.shape_of(value)
    dims = []
    given = ints(spread, "broadcast_dimensions")
    for d, extent in zip(given, hlo.shape_of(inner), strict=True):
        if extent != shape[d]:
            dims.append(())
        else:
            dims.append(view.dims[d])
    row: View | None = View(view.base, 0, tuple(dims))
    while (op := defining(inner)) is not None:
        above = moved(op, row, back=True)
        if above is None:
            break
        inner, row = op.operands[0], above
    columns = hlo.shape_of(view.base)[-1]
    have = merged(sorted((s for steps in row.dims for s in steps), key=_outer))
    size = hlo.size(view.base) // columns
    return (inner, row.dims) if have == merged([(size, columns)]) else None


def _outer(step: tuple[int, int]) -> int:
    return -step[1]


def reduced(op: ir.Operation, view: View) -> tuple[Steps, ...] | None:
    """How a reduction over the columns of a value of this view lies."""
    (dim,) = ints(op, "dimensions")[:1] or [-1]
    columns = hlo.shape_of(view.base)[-1]
    if len(ints(op, "dimensions")) != 1 or view.dims[dim] != ((columns, 1),):
        return None
    return tuple(steps for d, steps in enumerate(view.dims) if d != dim)


def matrix_of(value: ir.Value, view: View) -> Matrix | None:
    """A value with the pairs' own dimensions, as numbers of them."""
    own = view_of(value)
    if len(own.dims) != len(view.dims):  # one choice for all
        return None
    steps = []
    for first, second in zip(view.dims, own.dims, strict=True):
        if (both := paired(first, second)) is None:
            return None
        steps += both
    return Matrix(own.base, own.offset, joined(steps))


def operand(
    op: ir.Operation, at: int, dims: dict[int, Steps], wide: list[int]
) -> Matrix | None:
    """A product's operand, whose dimensions lie in the pairs so, and one of its own."""
    own = view_of(op.operands[at])
    steps = []
    for d, first in dims.items():
        if (both := paired(first, own.dims[d])) is None:
            return None
        steps += both
    across = merged(step for d in wide for step in own.dims[d])
    return (
        Matrix(own.base, own.offset, joined(steps), *across[0])
        if len(across) == 1
        else None
    )


def factors(product: ir.Operation, dims: tuple[Steps, ...]) -> Iterator[Matrix | None]:
    """The operands of a product that has one number for each pair."""
    for at in (0, 1):
        batch, deep, free = places(product, at)
        first = len(batch) if at == 0 else len(dims) - len(free)
        known = {d: dims[i] for i, d in enumerate(batch)}
        known |= {d: dims[first + i] for i, d in enumerate(free)}
        yield operand(product, at, known, deep)


def is_plain(op: ir.Operation) -> bool:
    """Whether all of it is f32, computed as f32."""
    types = {str(hlo.element_type(v)) for v in (*op.operands, op.result)}
    return types == {"f32"} and "algorithm" not in op.attributes


def places(op: ir.Operation, at: int) -> tuple[list[int], list[int], list[int]]:
    """Which dimensions of an operand are batches, added up, and neither."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    side = ("lhs", "rhs")[at]
    batch = list(getattr(numbers, f"{side}_batching_dimensions"))
    deep = list(getattr(numbers, f"{side}_contracting_dimensions"))
    rank = len(hlo.shape_of(op.operands[at]))
    return batch, deep, [d for d in range(rank) if d not in (*batch, *deep)]


def _settled(value: ir.Value) -> ir.Value:
    """What a loop goes round with and never changes, as it was before the loop."""
    while isinstance(value.owner, ir.Block):
        loop = value.owner.owner
        if loop is None or loop.operation.name != "stablehlo.while":
            break
        index = ir.BlockArgument(value).arg_number
        body = block_of(loop.operation, 1)
        *_, end = body.operations
        if end.operands[index] != body.arguments[index]:
            break
        value = loop.operation.operands[index]
    return value
