"""gather and the dynamic slices as IREE takes them: in range.

IREE's gather reads whatever lies at an index outside of the operand. So indices
are clamped; where they are provably in range (see ranges.py) nothing is emitted.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.analysis import ranges
from pcp.passes.core.rewriting import attributes, ints

Values = Sequence[ir.Value]


# --- gather ---


def gather(op: ir.Operation) -> Values | None:
    """The same gather with clamped indices; None when they are in range."""
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    operand, indices = op.operands
    sizes = ints(op, "slice_sizes")
    dims = list(numbers.start_index_map)
    highest = [hlo.shape_of(operand)[d] - sizes[d] for d in dims]
    clamped = clamp_indices(indices, numbers.index_vector_dim, highest)
    if clamped == indices:
        return None
    kept = attributes(op)
    types = [result.type for result in op.results]
    return hlo.op("gather", [operand, clamped], types, **kept).results


def clamp_indices(indices: ir.Value, dimension: int, highest: list[int]) -> ir.Value:
    """`indices` with component k along `dimension` inside `[0, highest[k]]`."""
    limit = ranges.limits(indices.type)[1]
    inside = (
        found is not None and 0 <= found[0] and found[1] <= high
        for k, high in enumerate(highest)
        for found in [ranges.component(indices, dimension, k)]
    )
    if all(inside):
        return indices
    bounds = [min(high, limit) for high in highest]
    element = hlo.element_type(indices)
    low = hlo.scalar(0, element)
    if len(set(bounds)) == 1:
        return hlo.clamp(low, indices, hlo.scalar(bounds[0], element))
    shape = hlo.shape_of(indices)
    columns = [hlo.constant(b, hlo.tensor((1,), element)) for b in bounds]
    row = hlo.broadcast_in_dim(hlo.concatenate(columns, 0), shape, [dimension])
    return hlo.clamp(hlo.splat(low, shape), indices, row)


# --- dynamic_slice, dynamic_update_slice ---


def dynamic_slice(op: ir.Operation) -> None:
    """Starts that IREE clamps as they are meant, in place."""
    _convert_starts(op, 1, ints(op, "slice_sizes"))


def dynamic_update_slice(op: ir.Operation) -> None:
    """The same for an update."""
    _convert_starts(op, 2, hlo.shape_of(op.operands[1]))


def _convert_starts(op: ir.Operation, first: int, sizes: Sequence[int]) -> None:
    """IREE clamps i32 and i64; it takes narrower ones for unsigned, and others not."""
    for d, size in enumerate(sizes):
        start = op.operands[first + d]
        element = ir.IntegerType(hlo.element_type(start))
        if element.width >= 32 and not element.is_unsigned:
            continue
        n = hlo.shape_of(op.operands[0])[d]
        bound = min(n - size, ranges.limits(start.type)[1], 2**31 - 1)
        inside = hlo.clamp(hlo.scalar(0, element), start, hlo.scalar(bound, element))
        wide = hlo.convert(inside, ir.IntegerType.get_signless(32))
        op.operands[first + d] = wide
