"""Attention of a sequence that is cut: by heads where they divide, else by queries.

Queries and keys of one sequence both claim the axis that cuts it, and the scores of
all pairs of positions can be cut along one of them only. DeepSpeed-Ulysses (Jacobs et
al. 2023, arXiv:2309.14509) gives the axis to a third dimension, the heads: members
exchange positions for heads (all-to-all), each attends within its heads over the whole
sequence, and what comes out is exchanged back. Where no batch dimension divides, each
member keeps its queries and gathers keys and values. Rows of a softmax stay whole.
"""

from collections.abc import Iterator, Sequence

from pcp.dialect.bindings import ir
from pcp.layout import Axes, Layout
from pcp.mesh import Mesh
from pcp.passes.core.elementwise import ELEMENTWISE, body_kind
from pcp.passes.core.rewriting import ints
from pcp.passes.sharding.factors import FactorRule
from pcp.passes.sharding.rules.shapes import shape_of

_FARTHEST = 32
"""Ops that are looked at behind scores: masks and a softmax have about ten."""

_Places = tuple[int | None, ...]
"""Which dimension of the scores each of a value's is; None for none of them."""


def scores_layout(
    op: ir.Operation, rule: FactorRule, layouts: Sequence[Layout], mesh: Mesh
) -> Layout | None:
    """How attention's scores are to lie whose rows and columns claim one axis.

    `layouts` are those of the product's operands and of its result. None for another
    op, where nothing is claimed twice, and where the program says it.
    """
    if op.name != "stablehlo.dot_general" or not (batches := _batches(rule)):
        return None
    if any(use.owner.name == "pcp.constraint" for use in op.result.uses):
        return None
    twice = {a: dims for a, dims in _claims(rule, layouts).items() if len(dims) == 2}
    columns = _softmax_dim(op.result) if twice else None
    twice = {a: dims for a, dims in twice.items() if columns in dims}
    if not twice:
        return None
    shape = shape_of(op.result)
    cut = [tuple(a for a in d if a not in twice) for d in layouts[2].dims]
    for axis in reversed(twice):  # the minor one is the first to leave a dimension
        (rows,) = set(twice[axis]) - {columns}
        even = all(mesh.is_even(shape[d], tuple(twice)) for d in twice[axis])
        home = _home(batches, shape, cut, axis, mesh) if even else None
        cut[rows if home is None else home] += (axis,)
    return Layout(tuple(cut))


def _batches(rule: FactorRule) -> list[int]:
    """The product's dimensions that both operands have."""
    (result,) = rule.results
    return [d for d, dim in enumerate(result) if all(dim in o for o in rule.operands)]


def _claims(rule: FactorRule, layouts: Sequence[Layout]) -> dict[str, list[int]]:
    """By axis the result's dimensions that one operand alone has, cut along it."""
    (result,), batches = rule.results, _batches(rule)
    found: dict[str, list[int]] = {}
    for dims, layout in zip(rule.operands, layouts, strict=False):
        for dim, axes in zip(dims, layout.dims, strict=True):
            place = result.index(dim) if dim in result else None
            if place is not None and place not in batches:
                for axis in axes:
                    found.setdefault(axis, []).append(place)
    return found


def _home(
    batches: Sequence[int],
    shape: Sequence[int],
    cut: Sequence[Axes],
    axis: str,
    mesh: Mesh,
) -> int | None:
    """The innermost batch dimension, heads before samples, that the axis divides."""
    fits = (d for d in reversed(batches) if mesh.is_even(shape[d], (*cut[d], axis)))
    return next(fits, None)


# --- the softmax behind the scores


def _softmax_dim(value: ir.Value) -> int | None:
    """The dimension of scores along which what is made of them has a softmax."""
    start: _Places = tuple(range(len(shape_of(value))))
    waiting, seen = [(value, start)], 0
    while waiting and seen < _FARTHEST:
        value, places = waiting.pop(0)
        for use in value.uses:
            seen += 1
            op = use.owner.operation
            if op.name == "stablehlo.reduce":
                if (dim := _largest_dim(op)) is not None:
                    return places[dim]
            elif (after := _after(op, places)) is not None:
                waiting.append((op.results[0], after))
    return None


def _largest_dim(reduce: ir.Operation) -> int | None:
    """The one dimension whose largest elements are taken."""
    dims = ints(reduce, "dimensions")
    largest = body_kind(reduce.regions[0].blocks[0]) == "maximum"
    return dims[0] if largest and len(dims) == 1 else None


def _after(op: ir.Operation, places: _Places) -> _Places | None:
    """Where an op that changes each element alone, or moves it, leaves dimensions."""
    if op.name in ELEMENTWISE:
        return places
    if op.name == "stablehlo.transpose":
        return tuple(places[d] for d in ints(op, "permutation"))
    if op.name == "stablehlo.reshape":
        return tuple(_reshaped(op, places))
    return None


def _reshaped(op: ir.Operation, places: _Places) -> Iterator[int | None]:
    """Dimensions of the same size and as many elements apart are the same."""
    old = _strides(shape_of(op.operands[0]))
    for size, stride in (new := _strides(shape_of(op.result))):
        same = (size, stride)
        unique = size > 1 and old.count(same) == new.count(same) == 1
        yield places[old.index(same)] if unique else None


def _strides(shape: Sequence[int]) -> list[tuple[int, int]]:
    """(size, elements from one to the next) of each dimension."""
    found, step = [], 1
    for size in reversed(shape):
        found.append((size, step))
        step *= size
    return found[::-1]
