"""Attention in a program, and its derivative: what JAX, torch and pcp-grad write.

    s = q · kᵀ, scaled; some of a row are hidden (`passes/kernels/scores.py`); where
        all of them are minus infinity they may be made zeros, as torch does
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
from pcp.dialect.bindings import ir
from pcp.passes.core.constants import splat
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.rewriting import defining
from pcp.passes.kernels.scores import (
    Hidden,
    Matrix,
    Scores,
    behind,
    factors,
    is_plain,
    matrix_of,
    operand,
    places,
    reduced,
    row_of,
    scaled,
)
from pcp.passes.kernels.views import Steps, View, merged, moved, step_of, whole

AS_GOOD_AS_INFINITE = -1e30
"""What hides a score: with it an exponential is zero."""

Dims = tuple[Steps | None, ...]
"""How a result's dimensions lie in the pairs; None for the width of a head."""


class Result(NamedTuple):
    """What a kernel gives instead of an op."""

    op: ir.Operation
    dims: Dims


class Rows(NamedTuple):
    """A number for each row, and how its dimensions lie."""

    value: ir.Value
    dims: tuple[Steps, ...]


@dataclass
class Attention:
    """What was found; what the program lacks is None.

    `ahead`: row r sees the columns up to r + ahead; besides there is what is `hidden`.
    Of the derivative there are `g` and `d`, which is subtracted where `less`, and some
    of the results.
    """

    pairs: View
    scores: Scores
    ahead: int
    hidden: list[Hidden]
    skipped: list[Hidden]
    q: Matrix
    k: Matrix
    v: Matrix | None = None
    g: Matrix | None = None
    d: Rows | None = None
    less: bool = False
    by: float = 1.0
    kept: list[Hidden] = field(default_factory=list)
    """By what slopes are hidden again."""
    sums: list[Result] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    """By name: y, dq, dk, dv."""

    @property
    def rows(self) -> int:
        """Of one batch."""
        return hlo.shape_of(self.pairs.base)[-2]

    @property
    def columns(self) -> int:
        """Of one batch."""
        return hlo.shape_of(self.pairs.base)[-1]

    @property
    def width(self) -> int:
        """Of a head."""
        return self.q.width

    def has(self, name: str, result: Result) -> bool:
        """Note a result; False for a second one."""
        new = name not in self.results
        self.results.setdefault(name, result)
        return new

    def reads(self, name: str, matrix: Matrix) -> bool:
        """Note an operand; False for another one than was noted before."""
        if getattr(self, name) is None:
            setattr(self, name, matrix)
        return getattr(self, name) == matrix and matrix.width == self.width

    @property
    def is_whole(self) -> bool:
        """Whether nothing lacks, and slopes are hidden as the scores are."""
        slopes = self.results.keys() & {"dq", "dk", "dv"}
        if self.v is None or bool(slopes) != (self.d is not None):
            return False
        if _has(self.v, self.columns, self.rows * self.columns):
            return False  # each row has values of its own
        if not slopes:
            return True
        masks = [hidden for hidden in self.hidden if hidden.number is not None]
        none = _slopes(self.skipped)
        kept = [h for h in self.kept if h not in none]
        level = [] if self.scores.level is None else [self.scores.level.mask]
        return self.g is not None and _same(kept, [*_slopes(masks), *level])


def _slopes(masks: list[Hidden]) -> list[Hidden]:
    """The same with zeros for what is hidden."""
    return [hidden._replace(number=0.0) for hidden in masks]


def _same(some: list[Hidden], others: list[Hidden]) -> bool:
    return all(a in others for a in some) and all(b in some for b in others)


def find(exponential: ir.Operation) -> Attention | None:
    """The attention whose exponentials these are, if nothing else reads them."""
    if (found := _scores(exponential)) is None:
        return None
    readers = _uses(exponential.result, found.pairs)
    whole_ = all(_is_known(op, e, view, found) for op, e, view in readers)
    return found if whole_ and found.is_whole else None


def _scores(exponential: ir.Operation) -> Attention | None:
    """The beginning: q, k, the scale and what is hidden."""
    less = defining(exponential.operands[0], "subtract")
    if less is None or str(hlo.element_type(exponential.result)) != "f32":
        return None
    scores, pairs = less.operands[0], whole(exponential.result)
    rank = len(hlo.shape_of(exponential.result))
    if rank < 3 or not _is_largest(less.operands[1], scores, pairs):
        return None
    found = behind(scores, pairs)
    if found is None or not is_plain(found.product):
        return None
    sides = list(factors(found.product, found.dims))
    rows, columns = hlo.shape_of(exponential.result)[-2:]
    if any(m is not None and _has(m, 1, columns) for m in sides[:1]):
        sides.reverse()
    q, k = sides
    if q is None or k is None or not _are_sides(q, k, rows, columns):
        return None
    return _hiding(Attention(pairs, found, columns, [], [], q, k))


def _has(matrix: Matrix, first: int, last: int) -> bool:
    """Whether it differs along pairs from `first` to `last` apart."""
    return any(s < last and s * n > first for n, s, _ in matrix.over)


def _are_sides(rows_of: Matrix, columns_of: Matrix, rows: int, columns: int) -> bool:
    """Whether one has rows alone, the other one columns, and both one width."""
    return (
        not _has(rows_of, 1, columns)
        and not _has(columns_of, columns, rows * columns)
        and rows_of.width == columns_of.width
    )


def _hiding(found: Attention) -> Attention | None:
    """Tell a causal mask, which hides for good, from other ones."""
    chain = found.scores.hidden
    for place, hidden in enumerate(chain):
        number = -np.inf if hidden.number is None else hidden.number
        alone = len(chain) == 1 and number <= AS_GOOD_AS_INFINITE
        if (alone and found.scores.level is None) or (place == 0 and number == -np.inf):
            ahead = hidden.ahead(found.rows, found.columns)
            if ahead is not None:
                found.ahead = ahead
                found.skipped.append(hidden)
                continue
        found.hidden.append(hidden)
    numbers = [hidden for hidden in found.hidden if hidden.number is None]
    return None if numbers and len(found.hidden) > 1 else found


def _is_largest(value: ir.Value, scores: ir.Value, pairs: View) -> bool:
    """Whether it is the largest of each row of `scores`, for the row."""
    if (row := row_of(value, pairs)) is None:
        return False
    reduce = defining(row[0], "reduce")
    return (
        reduce is not None
        and len(reduce.operands) == 2
        and (view := _same_elements(scores, pairs, reduce.operands[0])) is not None
        and reduced(reduce, view) == row[1]
        and body_kind(reduce.regions[0].blocks[0]) == "maximum"
        and splat(reduce.operands[1]) == -np.inf
        and len(list(reduce.result.uses)) == 1
    )


def _same_elements(value: ir.Value, view: View, other: ir.Value) -> View | None:
    """How the other one lies, which has the same elements, maybe at other places."""
    while value != other:
        op = defining(value)
        if op is None or (before := moved(op, view, back=True)) is None:
            return None
        value, view = op.operands[0], before
    return view


# --- what reads the exponentials


def _uses(value: ir.Value, view: View) -> Iterator[tuple[ir.Operation, ir.Value, View]]:
    """Readers of the value, or of what has the same elements at other places."""
    for use in value.uses:
        op = use.owner.operation
        if (other := moved(op, view)) is not None:
            yield from _uses(op.result, other)
        else:
            yield op, value, view


def _is_known(op: ir.Operation, e: ir.Value, view: View, found: Attention) -> bool:
    """Whether a reader of the exponentials is part of attention; it is noted."""
    if op.name == "stablehlo.reduce":
        dims = reduced(op, view)
        if dims is None or len(op.operands) != 2:
            return False
        found.sums.append(Result(op, dims))
        adds = body_kind(op.regions[0].blocks[0]) == "add"
        return adds and splat(op.operands[1]) == 0
    if op.name == "stablehlo.multiply":
        return _is_slope(op, e, view, found)
    if (factor := _factor(op, e, view, found)) is None:
        return False
    if factor.over_rows:
        return found.reads("g", factor.other) and found.has("dv", factor.result)
    return found.reads("v", factor.other) and found.has("y", factor.result)


def _is_slope(product: ir.Operation, e: ir.Value, view: View, found: Attention) -> bool:
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
    d, inner = row_of(row, view), behind(weights, view, added=True)
    if d is None or inner is None or inner.is_changed or inner.scale != 1:
        return False
    if not is_plain(inner.product):
        return False
    sides = list(factors(inner.product, inner.dims))
    if any(m is not None and _has(m, 1, found.columns) for m in sides[:1]):
        sides.reverse()
    g, v = sides
    if g is None or v is None or not _are_sides(g, v, found.rows, found.columns):
        return False
    found.d, found.less = Rows(*d), p.name == "stablehlo.subtract"
    return (
        found.reads("g", g)
        and found.reads("v", v)
        and _are_products(product.result, view, found)
    )


def _are_products(slopes: ir.Value, view: View, found: Attention) -> bool:
    """Whether the slopes, scaled and hidden again, are read by products alone."""
    while True:
        readers = list(_uses(slopes, view))
        if len(readers) != 1 or readers[0][0].name == "stablehlo.dot_general":
            break
        op, slopes, view = readers[0]
        if op.name == "stablehlo.select":
            if not _keeps(op, slopes, view, found):
                return False
        else:
            value, factor = scaled(op.result)
            if value != slopes:
                return False
            found.by *= factor
        slopes = op.result
    return all(_is_product(*reader, found) for reader in readers)


def _keeps(choice: ir.Operation, slopes: ir.Value, view: View, of: Attention) -> bool:
    """Whether it makes zeros of some slopes; that is noted."""
    mask, yes, no = choice.operands
    hides = no == slopes
    matrix = matrix_of(mask, view)
    if matrix is None or yes == no or splat(yes if hides else no) != 0:
        return False
    of.kept.append(Hidden(matrix, 0.0, hides))
    return True


def _is_product(op: ir.Operation, value: ir.Value, view: View, of: Attention) -> bool:
    if (factor := _factor(op, value, view, of)) is None:
        return False
    if factor.over_rows:
        return factor.other == of.q and of.has("dk", factor.result)
    return factor.other == of.k and of.has("dq", factor.result)


# --- products


class _Factor(NamedTuple):
    """A product with a value of all pairs: what is added up, and with what."""

    over_rows: bool
    other: Matrix
    result: Result


def _factor(
    op: ir.Operation, value: ir.Value, view: View, found: Attention
) -> _Factor | None:
    if op.name != "stablehlo.dot_general" or not is_plain(op):
        return None
    at = 0 if op.operands[0] == value else 1
    if op.operands[1 - at] == value:
        return None
    (batch, deep, free), (others, deep2, wide) = places(op, at), places(op, 1 - at)
    known = {d: view.dims[s] for d, s in zip(others, batch, strict=True)}
    known |= {d: view.dims[s] for d, s in zip(deep2, deep, strict=True)}
    other = operand(op, 1 - at, known, wide)
    if other is None:
        return None
    rows, columns = found.rows, found.columns
    added = merged(sorted((s for d in deep for s in view.dims[d]), key=lambda s: -s[1]))
    over_rows = added != ((columns, 1),)
    if over_rows and not _covers(added, rows, columns):
        return None
    own: list[Steps | None] = [view.dims[d] for d in free]
    width: list[Steps | None] = [None] if wide else []
    sides = own + width if at == 0 else width + own
    if len(wide) != 1:
        return None
    dims = (*(view.dims[d] for d in batch), *sides)
    return _Factor(over_rows, other, Result(op, dims))


def _covers(added: Steps, rows: int, columns: int) -> bool:
    """Whether all rows are added up, and no columns, maybe over batches, too."""
    over = tuple((n, step, step) for n, step in added)
    return all(step >= columns for _, step in added) and (
        step_of(over, columns) == columns and _last(added, columns) >= rows * columns
    )


def _last(added: Steps, columns: int) -> int:
    return next((n * step for n, step in added if step == columns), 0)
