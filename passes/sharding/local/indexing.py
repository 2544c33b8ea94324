"""Lookups on one member: dynamic_slice, gather, scatter."""

from collections.abc import Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows
from pcp.passes.core import constants
from pcp.passes.core.rewriting import ints
from pcp.passes.sharding.local.op import Local, Value


def dynamic_slice(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    copy = at.clone(operands)
    copy.attributes["slice_sizes"] = hlo.i64s(at.shape(len(operands)))
    return list(copy.results)


def _own_windows(
    at: Local, windows: Windows, indices: Value
) -> tuple[Value, list[tuple[int, int]]]:
    """Indices from the start of the member's part; (component, size) of cut dims."""
    dims = at.rule.operands[0]
    offsets, cut = [], []
    for component, d in enumerate(windows.index_map):
        offset, size = at.part(dims[d][0])
        looked_up = d in windows.collapsed and at.layouts[0].dims[d]
        offsets.append(offset if looked_up else 0)
        if looked_up:
            cut.append((component, size))
    if not any(offsets):
        return indices, cut
    return hlo.subtract(indices, _components(offsets, windows, indices)), cut


def _components(numbers: Sequence[int], windows: Windows, indices: Value) -> Value:
    """One number for each component, at every index vector."""
    shape = hlo.shape_of(indices)
    element = hlo.element_type(indices)
    if windows.index_vector == len(shape):
        return hlo.constant_like(indices, numbers[0])
    type_ = hlo.tensor((len(numbers),), element)
    vector = constants.make(np.array(numbers), type_)
    return hlo.broadcast_in_dim(vector, shape, [windows.index_vector])


def gather(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Rows that the member has; zeros for the others, to be summed over members.

    The whole gather clamps its indices first: so must each member.
    """
    windows = Windows.of_gather(at.op.attributes["dimension_numbers"])
    operand, indices = operands
    if any(d in windows.collapsed and at.layouts[0].dims[d] for d in windows.index_map):
        indices = _clamped(at, windows, indices)
    local, cut = _own_windows(at, windows, indices)
    copy = at.clone([operand, local])
    sizes = list(ints(at.op, "slice_sizes"))
    for d, n in enumerate(at.shape(0)):
        if at.layouts[0].dims[d] and d not in windows.collapsed:
            sizes[d] = n
    for d in windows.operand_batching:
        sizes[d] = 1
    if any(size == 0 for _, size in cut):  # nothing to look up in
        copy.erase()
        type_ = hlo.tensor(at.shape(2), hlo.element_type(at.op.results[0]))
        return [hlo.zeros(type_)]
    copy.attributes["slice_sizes"] = hlo.i64s(sizes)
    found = copy.results[0]
    if not cut:
        return [found]
    mask = _mask(windows, local, cut, hlo.shape_of(found))
    return [hlo.select(mask, found, hlo.zeros(found.type))]


def _clamped(at: Local, windows: Windows, indices: Value) -> Value:
    """Indices into the whole operand, as the gather would clamp them."""
    whole = tuple(ir.RankedTensorType(at.op.operands[0].type).shape)
    sizes = ints(at.op, "slice_sizes")
    last = [whole[d] - sizes[d] for d in windows.index_map]
    high = _components(last, windows, indices)
    return hlo.clamp(hlo.zeros(indices.type), indices, high)


def _mask(
    windows: Windows,
    indices: Value,
    cut: Sequence[tuple[int, int]],
    shape: Sequence[int],
) -> Value:
    """Where every cut component points into the member's part, at that shape."""
    batch = [d for d in range(len(shape)) if d not in windows.offset]
    inside: Value | None = None
    for component, size in cut:
        one = _component(windows, indices, component)
        fits = hlo.and_(
            hlo.compare("GE", one, hlo.zeros(one.type)),
            hlo.compare("LT", one, hlo.constant_like(one, size)),
        )
        inside = fits if inside is None else hlo.and_(inside, fits)
    assert inside is not None
    return hlo.broadcast_in_dim(inside, shape, batch)


def _component(windows: Windows, indices: Value, component: int) -> Value:
    """One component of each index vector, without the vector's dimension."""
    shape, d = list(hlo.shape_of(indices)), windows.index_vector
    if d == len(shape):
        return indices
    start, limit = [0] * len(shape), list(shape)
    start[d], limit[d] = component, component + 1
    return hlo.reshape(hlo.slice_(indices, start, limit), shape[:d] + shape[d + 1 :])


def scatter(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Updates that fall into the member's part; the others drop out of range.

    Where updates are cut, results are summed over members: only the first of them
    starts from the operand, the others from zeros.
    """
    windows = Windows.of_scatter(at.op.attributes["scatter_dimension_numbers"])
    count = len(operands) // 2
    local, _ = _own_windows(at, windows, operands[count])
    start = list(operands[:count])
    summed = at.rule.reductions(at.assignment).get("sum", ())
    if any(at.place[axis] for axis in summed):
        start = [v if constants.splat(v) == 0 else hlo.zeros(v.type) for v in start]
    return list(at.clone([*start, local, *operands[count + 1 :]]).results)
