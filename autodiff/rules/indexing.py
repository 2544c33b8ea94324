"""Data movement with positions known at run time: gather, dynamic slices, sort.

Positions are integers and have no cotangent. A gather moves an out-of-range
window to where it fits, a scatter (see `scatters`) drops it; a transpose must do
what its primal did, so a gather's clamps its indices first.
"""

from pcp.autodiff.core.kinds import Linear, Site, Vjp
from pcp.autodiff.core.values import wide
from pcp.autodiff.rules.places import flag, in_range
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, clamp_indices, scatter, sort

Value = ir.Value


def _gather(at: Site, g: Value) -> Value:
    """Scatter-add of g onto zeros, at the positions that were read."""
    operand, indices = at[0], at[1]
    windows = Windows.of_gather(at.attribute("dimension_numbers"))
    sizes, shape = at.ints("slice_sizes"), hlo.shape_of(operand)
    if not in_range(indices, windows, shape, sizes):
        indices = clamp_indices(indices, windows, shape, sizes)
    element = hlo.element_type(g)
    total = scatter(
        hlo.zeros(hlo.tensor(shape, wide(element))),
        indices,
        hlo.convert(g, wide(element)),
        windows,
        hlo.add,
        is_sorted=flag(at, "indices_are_sorted"),
    )
    return hlo.convert(total, element)


def _dynamic_slice(at: Site, g: Value) -> Value:
    """Both ops clamp their starts alike, so this is exact out of bounds too."""
    return hlo.dynamic_update_slice(hlo.zeros(at[0].type), g, list(at.op.operands)[1:])


def _updated(at: Site, g: Value) -> Value:
    """What was overwritten gets nothing."""
    return hlo.dynamic_update_slice(g, hlo.zeros(at[1].type), list(at.op.operands)[2:])


def _update(at: Site, g: Value) -> Value:
    return hlo.dynamic_slice(g, list(at.op.operands)[2:], hlo.shape_of(at[1]))


# --- sort ---


def _sort(at: Site) -> list[Value | None]:
    """Sort the cotangents back by where each element came from.

    The primal sorts a counter along, so that the permutation is the one used,
    also where the comparison calls two elements equal.
    """
    axis = at.int("dimension")
    came_from = _with_counter(at.op, axis)
    live = [i for i, g in enumerate(at.cotangents) if g is not None]

    def earlier(a: Value, b: Value, *_: Value) -> Value:
        return hlo.compare("LT", a, b)

    _, *back = sort(
        [came_from, *(at.cotangents[i] for i in live)], axis, earlier, is_stable=False
    )
    answer: list[Value | None] = [None] * len(at.inputs)
    for i, g in zip(live, back, strict=True):
        answer[i] = g
    return answer


def _with_counter(op: ir.Operation, axis: int) -> Value:
    """Replace the op by one that also sorts 0, 1, ... along `axis`; returns those."""
    i32 = ir.IntegerType.get_signless(32)
    with ir.InsertionPoint(op):
        counter = hlo.iota(hlo.like(op.operands[0], element=i32), axis)
        return _sorted_along(op, [counter])[-1]


def _sorted_along(op: ir.Operation, more: list[Value]) -> list[Value]:
    """Replace the op by one that moves `more` as it moves its operands.

    Emits at the insertion point; returns all results. The old op is left without
    users.
    """
    husk = op.clone()
    wider = hlo.op(
        "sort",
        [*op.operands, *more],
        [*(r.type for r in op.results), *(x.type for x in more)],
        regions=1,
        **{name: op.attributes[name] for name in op.attributes},
    )
    husk.regions[0].blocks[0].append_to(wider.regions[0])
    husk.erase()
    for x in more:
        for _ in range(2):
            scalar = hlo.tensor((), hlo.element_type(x))
            wider.regions[0].blocks[0].add_argument(scalar, op.location)
    for old, new in zip(op.results, wider.results, strict=False):
        old.replace_all_uses_with(new)
    return list(wider.results)


def _sort_forward(op: ir.Operation, tangents: dict[Value, Value]) -> None:
    """Tangents are sorted along with their operands, where the op stands."""
    moving = [i for i, x in enumerate(op.operands) if x in tangents]
    with ir.InsertionPoint(op):
        results = _sorted_along(op, [tangents[op.operands[i]] for i in moving])
    pushed = results[len(op.results) :]
    for i, tangent in zip(moving, pushed, strict=True):
        tangents[results[i]] = tangent


RULES = {
    "sort": Vjp(_sort, _sort_forward),
    "gather": Linear(_gather, None),
    "dynamic_slice": Linear(_dynamic_slice),
    "dynamic_update_slice": Linear(_updated, _update),
}
