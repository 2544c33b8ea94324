"""gather and the slices as IREE takes them: in range, and not where they lie.

IREE's gather reads whatever lies at an index outside of the operand. So indices
are clamped; where they are provably in range (see ranges.py) nothing is emitted.

IREE joins a slice with the op that reads it, and reads it where it lies. What it cannot
read so, a barrier holds in memory of its own.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.analysis import ranges
from pcp.passes.core.rewriting import attributes, defining, ints

Values = Sequence[ir.Value]

#: Ops that IREE joins with the load in front of them.
_PASSED = tuple(
    f"stablehlo.{name}"
    for name in ("bitcast_convert", "convert", "reshape", "slice", "transpose")
)


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


# --- slices that others read ---


def hold_strided(gather: ir.Operation) -> None:
    """A barrier in front of a table of which neighbours lie apart, in place.

    IREE finds no vector instruction: "failed to translate the MLIR LLVM dialect".
    """
    if is_strided(gather.operands[0]):
        gather.operands[0] = hlo.optimization_barrier(gather.operands[0])


def hold_slices(sort: ir.Operation) -> None:
    """A barrier in front of each slice that is sorted, in place.

    IREE would sort it where it lies: "write affecting operations on global resources".
    """
    for i, x in enumerate(sort.operands):
        if _slice(x) is not None:
            sort.operands[i] = hlo.optimization_barrier(x)


def is_strided(x: ir.Value) -> bool:
    """Whether it is a slice of which neighbours lie apart, moved or converted since."""
    while (made := defining(x)) is not None:
        if (cut := _slice(x)) is not None and _step(cut) > 1:
            return True
        if made.name not in _PASSED:
            return False
        x = made.operands[0]
    return False


def _slice(x: ir.Value) -> ir.Operation | None:
    """The op that cuts `x` out of another tensor, but for a reshape behind it."""
    while (reshape := defining(x, "reshape")) is not None:
        x = reshape.operands[0]
    return defining(x, "slice") or defining(x, "dynamic_slice")


def _step(cut: ir.Operation) -> int:
    """Elements from one element of a slice to the next one, in memory."""
    shape, kept = (hlo.shape_of(x) for x in (cut.operands[0], cut.results[0]))
    steps = ints(cut, "strides") if "strides" in cut.attributes else [1] * len(shape)
    size = 1
    for whole, part, step in zip(shape[::-1], kept[::-1], steps[::-1], strict=True):
        if part > 1:
            return size * step
        size *= whole
    return 1
