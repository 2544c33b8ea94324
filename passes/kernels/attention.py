"""Attention in a program, and its derivative: what JAX, torch and pcp-grad write.

    s = q · kᵀ, scaled, what a row does not see as good as minus infinity
    m = rows' largest of s        e = exp(s - m)        l = rows' sums of e
    y = e · v                     p = g · vᵀ + d        ds = p · e, scaled
    dq = ds · k                   dk = dsᵀ · q          dv = eᵀ · g

`e`, as large as all pairs of positions, may be read by these ops alone. That of the
derivative is what `pcp-divide-late` lets pcp-grad write.
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
from pcp.passes.kernels.views import Steps, view_of

AS_GOOD_AS_INFINITE = -1e30
"""What hides a score: with it an exponential is zero."""

MOST_PAIRS = 1 << 24
"""Positions of a mask that are looked at."""


class Matrix(NamedTuple):
    """Where batches, rows and columns of an operand lie in `base`."""

    base: ir.Value
    offset: int
    batch: Steps
    rows: Steps
    columns: Steps


class Result(NamedTuple):
    """A product that a kernel gives, and whether the program has it transposed."""

    op: ir.Operation
    turned: bool


@dataclass
class Attention:
    """What was found; what the program lacks is None.

    `ahead`: row r sees the columns up to r + ahead. Of the derivative there are `g`
    and `d`, which is subtracted where `less`, and some of the results.
    """

    batch: int
    rows: int
    columns: int
    width: int
    ahead: int
    scale: float
    q: Matrix
    k: Matrix
    v: Matrix | None = None
    g: Matrix | None = None
    d: ir.Value | None = None
    less: bool = False
    by: float = 1.0
    sums: list[ir.Operation] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    """By name: y, dq, dk, dv."""

    def has(self, name: str, found: "_Factor") -> bool:
        """Note a result by its product; False for a second one."""
        new = name not in self.results
        self.results.setdefault(name, Result(found.op, found.turned))
        return new

    def reads(self, name: str, matrix: Matrix) -> bool:
        """Note an operand; False for another one than was noted before."""
        if getattr(self, name) is None:
            setattr(self, name, matrix)
        return getattr(self, name) == matrix


def find(exponential: ir.Operation) -> Attention | None:
    """The attention whose exponentials these are, if nothing else reads them."""
    if (found := _scores(exponential)) is None:
        return None
    whole = all(_is_known(op, e, found) for op, e in _uses(exponential.result))
    slopes = found.results.keys() & {"dq", "dk", "dv"}
    if not whole or found.v is None or bool(slopes) != (found.d is not None):
        return None
    return found if found.g is not None or not slopes else None


def _scores(exponential: ir.Operation) -> Attention | None:
    """The beginning: q, k, the scale and what is hidden."""
    less = defining(exponential.operands[0], "subtract")
    if less is None or str(hlo.element_type(exponential.result)) != "f32":
        return None
    scores, shape = less.operands[0], hlo.shape_of(exponential.result)
    if len(shape) < 3 or not _is_largest(less.operands[1], scores):
        return None
    rows, columns = shape[-2:]
    score, ahead = _seen(scores, rows, columns)
    score, scale = _scaled(score)
    product = defining(_unshaped(score), "dot_general")
    if (
        ahead is None
        or product is None
        or hlo.shape_of(product.result)[-2:] != shape[-2:]
    ):
        return None
    q, k = _operand(product, 0), _operand(product, 1)
    if q is None or k is None or not _is_plain(product):
        return None
    (width,) = {_count(q.columns), _count(k.columns)}
    batch = hlo.size(exponential.result) // (rows * columns)
    return Attention(batch, rows, columns, width, ahead, scale, q, k)


def _is_largest(value: ir.Value, scores: ir.Value) -> bool:
    """Whether it is the largest of each row of `scores`, for the row."""
    rank, inner = len(hlo.shape_of(scores)), _of_rows(value)
    if inner is None:
        return False
    inner = _unshaped(inner)
    reduce = defining(inner, "reduce")
    return (
        reduce is not None
        and len(reduce.operands) == 2
        and reduce.operands[0] == scores
        and ints(reduce, "dimensions") == [rank - 1]
        and body_kind(reduce.regions[0].blocks[0]) == "maximum"
        and splat(reduce.operands[1]) == -np.inf
        and len(list(reduce.result.uses)) == 1
    )


def _of_rows(value: ir.Value) -> ir.Value | None:
    """What is spread over the rows of a value, in their order; one number for each."""
    spread = defining(value, "broadcast_in_dim")
    if spread is None:
        return None
    inner, *rows = spread.operands[0], *hlo.shape_of(value)[:-1]
    dims, shape = ints(spread, "broadcast_dimensions"), hlo.shape_of(inner)
    given = [(d, n) for d, n in zip(dims, shape, strict=True) if n > 1]
    return inner if given == [(d, n) for d, n in enumerate(rows) if n > 1] else None


def _seen(scores: ir.Value, rows: int, columns: int) -> tuple[ir.Value, int | None]:
    """The scores before some were hidden; how far ahead a row sees, or None."""
    choice = defining(scores, "select")
    if choice is None:
        return scores, columns
    mask, yes, no = choice.operands
    for hidden, score, when in ((yes, no, True), (no, yes, False)):
        filling = splat(hidden)
        if filling is not None and filling <= AS_GOOD_AS_INFINITE:
            return score, _ahead(mask, when, rows, columns)
    return scores, None


def _ahead(mask: ir.Value, hides: bool, rows: int, columns: int) -> int | None:
    """How far ahead each row sees, where the mask lets it see that and no more."""
    spread = defining(mask, "broadcast_in_dim")
    rank = len(hlo.shape_of(mask))
    if spread is not None:
        dims, mask = ints(spread, "broadcast_dimensions"), spread.operands[0]
        if dims[-2:] != [rank - 2, rank - 1]:
            return None
    *front, height, width = hlo.shape_of(mask)
    if (height, width) != (rows, columns) or set(front) - {1}:
        return None
    values = fold.evaluate(mask, MOST_PAIRS)
    if values is None:
        return None
    visible = values.reshape(rows, columns) != hides
    ahead = int(visible[0].sum()) - 1
    same = np.array_equal(visible, np.tri(rows, columns, ahead, dtype=bool))
    return ahead if ahead >= 0 and same else None


def _scaled(value: ir.Value) -> tuple[ir.Value, float]:
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


def _unshaped(value: ir.Value) -> ir.Value:
    while (op := defining(value, "reshape")) is not None:
        value = op.operands[0]
    return value


# --- what reads the exponentials


class _Factor(NamedTuple):
    """A product with a value of rows and columns: which are added up, and with what.

    The other operand's rows are those that are added up.
    """

    op: ir.Operation
    over_rows: bool
    other: Matrix
    turned: bool


def _uses(value: ir.Value) -> Iterator[tuple[ir.Operation, ir.Value]]:
    """Readers of the value, or of a reshape of it that keeps rows and columns."""
    for use in value.uses:
        op = use.owner.operation
        if op.name == "stablehlo.reshape":
            kept = hlo.shape_of(op.result)[-2:] == hlo.shape_of(value)[-2:]
            if kept and len(hlo.shape_of(op.result)) > 2:
                yield from _uses(op.result)
                continue
        yield op, value


def _is_known(op: ir.Operation, e: ir.Value, found: Attention) -> bool:
    """Whether a reader of the exponentials is part of attention; it is noted."""
    if op.name == "stablehlo.reduce":
        found.sums.append(op)
        return (
            len(op.operands) == 2
            and ints(op, "dimensions") == [len(hlo.shape_of(e)) - 1]
            and body_kind(op.regions[0].blocks[0]) == "add"
            and splat(op.operands[1]) == 0
        )
    if op.name == "stablehlo.multiply":
        return _is_slope(op, e, found)
    if (factor := _factor(op, e)) is None:
        return False
    if factor.over_rows:
        return found.reads("g", factor.other) and found.has("dv", factor)
    return found.reads("v", factor.other) and found.has("y", factor)


def _is_slope(product: ir.Operation, e: ir.Value, found: Attention) -> bool:
    """Whether it is p · e, and what is made of it dq and dk."""
    left, right = product.operands
    p = defining(right if left == e else left)
    if left == right or found.d is not None or p is None:
        return False
    if p.name not in ("stablehlo.add", "stablehlo.subtract"):
        return False
    weights, row = p.operands
    if p.name == "stablehlo.add" and defining(weights, "broadcast_in_dim"):
        weights, row = row, weights
    d, inner = _of_rows(row), defining(_unshaped(weights), "dot_general")
    if d is None or inner is None:
        return False
    if hlo.shape_of(inner.result)[-2:] != hlo.shape_of(e)[-2:] or not _is_plain(inner):
        return False
    g, v = _operand(inner, 0), _operand(inner, 1)
    if g is None or v is None:
        return False
    found.d, found.less = d, p.name == "stablehlo.subtract"
    return (
        found.reads("g", g)
        and found.reads("v", v)
        and _are_products(product.result, found)
    )


def _are_products(slopes: ir.Value, found: Attention) -> bool:
    """Whether the slopes, scaled and hidden again, are read by products alone."""
    while True:
        readers = list(_uses(slopes))
        if len(readers) != 1 or readers[0][0].name == "stablehlo.dot_general":
            break
        op, slopes = readers[0]
        if op.name == "stablehlo.select":
            if _kept(op, slopes, found) is None:
                return False
        else:
            value, factor = _scaled(op.result)
            if value != slopes:
                return False
            found.by *= factor
        slopes = op.result
    return all(_is_product(op, value, found) for op, value in readers)


def _kept(choice: ir.Operation, slopes: ir.Value, found: Attention) -> bool | None:
    """Whether only what is hidden in the scores becomes zero."""
    mask, yes, no = choice.operands
    hides = no == slopes
    if splat(yes if hides else no) != 0:
        return None
    ahead = _ahead(mask, hides, found.rows, found.columns)
    return True if ahead == found.ahead else None


def _is_product(op: ir.Operation, slopes: ir.Value, found: Attention) -> bool:
    if (factor := _factor(op, slopes)) is None:
        return False
    if factor.over_rows:
        return factor.other == found.q and found.has("dk", factor)
    return factor.other == found.k and found.has("dq", factor)


# --- products


def _factor(op: ir.Operation, value: ir.Value) -> _Factor | None:
    if op.name != "stablehlo.dot_general" or not _is_plain(op):
        return None
    at = 0 if op.operands[0] == value else 1
    if op.operands[1 - at] == value:
        return None
    rank = len(hlo.shape_of(value))
    batch, deep, _ = _places(op, at)
    other = _operand(op, 1 - at, deep_first=True)
    if batch != list(range(rank - 2)) or len(deep) != 1 or other is None:
        return None
    if deep[0] < rank - 2:
        return None
    return _Factor(op, deep[0] == rank - 2, other, at == 1)


def _is_plain(op: ir.Operation) -> bool:
    """Whether all of it is f32, computed as f32."""
    types = {str(hlo.element_type(v)) for v in (*op.operands, op.result)}
    return types == {"f32"} and "algorithm" not in op.attributes


def _places(op: ir.Operation, at: int) -> tuple[list[int], list[int], list[int]]:
    """Which dimensions of an operand are batches, added up, and neither."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    side = ("lhs", "rhs")[at]
    batch = list(getattr(numbers, f"{side}_batching_dimensions"))
    deep = list(getattr(numbers, f"{side}_contracting_dimensions"))
    rank = len(hlo.shape_of(op.operands[at]))
    return batch, deep, [d for d in range(rank) if d not in (*batch, *deep)]


def _operand(op: ir.Operation, at: int, *, deep_first: bool = False) -> Matrix | None:
    """Its batches, rows and columns; what is added up are columns, or rows."""
    batch, deep, free = _places(op, at)
    if len(deep) != 1 or len(free) != 1:
        return None
    view = view_of(op.operands[at])
    order = (deep, free) if deep_first else (free, deep)
    return Matrix(view.base, view.offset, *view.along(batch, *order))


def _count(steps: Steps) -> int:
    return int(np.prod([count for count, _ in steps], dtype=int))
