"""Indexed ops as IREE takes them: in range, whole rows, indexed dims first.

IREE's gather reads whatever lies at an index outside of the operand, and its
scatter writes there. So indices are clamped, and updates that must not land are
replaced by what changes nothing. Where the indices are provably in range (see
ranges.py) nothing is emitted.

A scatter is rewritten to one form: indices `[M, K]`, updates `[M, rows...]`,
operand `[K indexed dims, row dims...]`. A window that covers a part of a dim is
scattered element by element along it. A window that is partly outside is dropped
whole, as XLA does (the specification's interpreter drops element by element).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes import ranges
from pcp.passes.elementwise import body_kind, copy_block, identity, inline
from pcp.passes.rewriting import attributes, ints, refuse

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
    for d, n in enumerate(hlo.shape_of(op.operands[0])):
        start = op.operands[first + d]
        element = ir.IntegerType(hlo.element_type(start))
        if element.width >= 32 and not element.is_unsigned:
            continue
        bound = min(n - sizes[d], ranges.limits(start.type)[1], 2**31 - 1)
        inside = hlo.clamp(hlo.scalar(0, element), start, hlo.scalar(bound, element))
        wide = hlo.convert(inside, ir.IntegerType.get_signless(32))
        op.operands[first + d] = wide


# --- scatter ---


@dataclass(frozen=True)
class Geometry:
    """Where a scatter's window lies: all per dim of the operand."""

    shape: tuple[int, ...]
    window: tuple[int, ...]  # 1 along inserted and batching dims
    indexed: tuple[int, ...]  # dims that the index vector or a batch dim addresses
    batching: tuple[int, ...]

    @property
    def full(self) -> list[int]:
        """Dims that every window covers: the rows that are moved as one."""
        return [
            d
            for d, n in enumerate(self.shape)
            if self.window[d] == n and d not in self.batching
        ]

    @property
    def addressed(self) -> list[int]:
        """The other dims, each with an index column."""
        return [d for d in range(len(self.shape)) if d not in self.full]


def scatter(op: ir.Operation) -> Values | None:
    """One IREE-safe scatter an operand, or None when it is one already."""
    count = len(op.operands) // 2
    if count > 1:
        return _split(op, count)
    operand, indices, updates = op.operands
    numbers = stablehlo.ScatterDimensionNumbers(
        op.attributes["scatter_dimension_numbers"]
    )
    geometry = _geometry(numbers, operand, updates)
    columns, inside = _columns(op, numbers, geometry, indices)
    if inside is None and _is_regular(numbers, geometry, indices):
        return None
    rows = _flat_updates(numbers, geometry, updates)
    if hlo.shape_of(rows)[0] == 0:
        return [operand]
    if hlo.shape_of(rows)[0] == 1:
        return [_single(op, geometry, columns, inside, rows)]
    return [_scatter_rows(op, geometry, columns, inside, rows)]


def _split(op: ir.Operation, count: int) -> Values:
    """A variadic scatter as one scatter an operand."""
    indices = op.operands[count]
    results = []
    for i in range(count):
        operand, updates = op.operands[i], op.operands[count + 1 + i]
        kept = attributes(op)
        single = hlo.op(
            "scatter", [operand, indices, updates], [operand.type], regions=1, **kept
        )
        _copy_pair(op, single, i, count)
        values = scatter(single)
        results.append(single.result if values is None else values[0])
        if values is not None:
            single.erase()
    return results


def _copy_pair(op: ir.Operation, single: ir.Operation, i: int, count: int) -> None:
    """The part of a variadic body that makes result `i` from its own two values."""
    copy_block(op.regions[0].blocks[0], single.regions[0], [i])
    block = single.regions[0].blocks[0]
    for inner in reversed(list(block.operations)[:-1]):
        if not any(True for r in inner.operation.results for _ in r.uses):
            inner.operation.erase()
    for j in reversed(range(2 * count)):
        if j % count == i:
            continue
        if list(block.arguments[j].uses):
            refuse(op, f"result {i} of the body needs the values of another operand")
        block.erase_argument(j)


def _geometry(
    numbers: stablehlo.ScatterDimensionNumbers, operand: ir.Value, updates: ir.Value
) -> Geometry:
    shape = hlo.shape_of(operand)
    single = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    window = [1] * len(shape)
    free = [d for d in range(len(shape)) if d not in single]
    for d, w in zip(free, numbers.update_window_dims, strict=True):
        window[d] = hlo.shape_of(updates)[w]
    batching = tuple(numbers.input_batching_dims)
    indexed = (*numbers.scattered_dims_to_operand_dims, *batching)
    return Geometry(shape, tuple(window), indexed, batching)


def _is_regular(
    numbers: stablehlo.ScatterDimensionNumbers, geometry: Geometry, indices: ir.Value
) -> bool:
    """Whether IREE takes it as it stands."""
    front = list(range(len(geometry.indexed)))
    rank = len(hlo.shape_of(indices))
    windows = list(numbers.update_window_dims)
    return (
        not geometry.batching
        and rank == 2
        and numbers.index_vector_dim == 1
        and list(numbers.scattered_dims_to_operand_dims) == front
        and list(numbers.inserted_window_dims) == front
        and windows == list(range(1, 1 + len(windows)))
        and all(
            geometry.window[d] == n
            for d, n in enumerate(geometry.shape)
            if d not in front
        )
    )


def _columns(
    op: ir.Operation,
    numbers: stablehlo.ScatterDimensionNumbers,
    geometry: Geometry,
    indices: ir.Value,
) -> tuple[dict[int, ir.Value], ir.Value | None]:
    """The start index of each indexed dim as `[N]`, in range, and which N are.

    The second is None when all of them are, whatever the data.
    """
    shape, vector = hlo.shape_of(indices), numbers.index_vector_dim
    element = hlo.element_type(indices)
    columns: dict[int, ir.Value] = {}
    inside: ir.Value | None = None
    for k, d in enumerate(numbers.scattered_dims_to_operand_dims):
        column = _component(indices, vector, k)
        highest = geometry.shape[d] - geometry.window[d]
        found = ranges.component(indices, vector, k)
        if found is None or found[0] < 0 or found[1] > highest:
            bound = min(highest, ranges.limits(indices.type)[1])
            low, high = hlo.scalar(0, element), hlo.scalar(bound, element)
            clamped = hlo.clamp(low, column, high)
            good = hlo.compare("EQ", clamped, column)
            inside = good if inside is None else hlo.and_(inside, good)
            column = clamped
        columns[d] = _narrow(op, column, geometry.shape[d])
    outer = [n for i, n in enumerate(shape) if i != vector]
    batches = zip(geometry.batching, numbers.scatter_indices_batching_dims, strict=True)
    for d, i in batches:
        counts = hlo.iota(hlo.tensor(outer, _index_type(geometry)), i - (i > vector))
        columns[d] = hlo.reshape(counts, [prod(outer)])
    return columns, inside


def _component(indices: ir.Value, dimension: int, k: int) -> ir.Value:
    """Component `k` of each index vector, flat."""
    shape = hlo.shape_of(indices)
    if dimension == len(shape):
        return hlo.reshape(indices, [prod(shape)])
    if shape[dimension] == 1:
        return hlo.reshape(indices, [prod(shape)])
    start = [k if d == dimension else 0 for d in range(len(shape))]
    limit = [k + 1 if d == dimension else n for d, n in enumerate(shape)]
    part = hlo.slice_(indices, start, limit)
    return hlo.reshape(part, [hlo.size(part)])


def _index_type(geometry: Geometry) -> ir.Type:
    wide = max(geometry.shape, default=0) >= 2**31
    return ir.IntegerType.get_signless(64 if wide else 32)


def _narrow(op: ir.Operation, column: ir.Value, size: int) -> ir.Value:
    """In range by now, so 32 bits do unless the dim is longer."""
    if size >= 2**31:
        refuse(op, f"a scattered dim of {size} elements needs more than 32 bits")
    return hlo.convert(column, ir.IntegerType.get_signless(32))


def _flat_updates(
    numbers: stablehlo.ScatterDimensionNumbers, geometry: Geometry, updates: ir.Value
) -> ir.Value:
    """Updates as `[N, window...]`, a window dim for each dim of the operand."""
    shape = hlo.shape_of(updates)
    windows = list(numbers.update_window_dims)
    outer = [d for d in range(len(shape)) if d not in windows]
    ordered = hlo.transpose(updates, [*outer, *windows])
    return hlo.reshape(ordered, [prod(shape[d] for d in outer), *geometry.window])


def _single(
    op: ir.Operation,
    geometry: Geometry,
    columns: dict[int, ir.Value],
    inside: ir.Value | None,
    rows: ir.Value,
) -> ir.Value:
    """One window: read it, combine, write it back."""
    operand = op.operands[0]
    zero = hlo.scalar(0, ir.IntegerType.get_signless(32))
    starts = [
        hlo.reshape(columns[d], []) if d in columns else zero
        for d in range(len(geometry.shape))
    ]
    starts = [hlo.convert(s, hlo.element_type(zero)) for s in starts]
    old = hlo.dynamic_slice(operand, starts, geometry.window)
    updates = hlo.reshape(rows, geometry.window)
    (new,) = inline(op.regions[0].blocks[0], [old, updates])
    if inside is not None:
        new = hlo.select(hlo.reshape(inside, []), new, old)
    return hlo.dynamic_update_slice(operand, new, starts)


def _scatter_rows(
    op: ir.Operation,
    geometry: Geometry,
    columns: dict[int, ir.Value],
    inside: ir.Value | None,
    rows: ir.Value,
) -> ir.Value:
    """Many windows: expand the partial dims, mask, and scatter row by row."""
    operand = op.operands[0]
    element = hlo.element_type(operand)
    kind = body_kind(op.regions[0].blocks[0])
    neutral = None if kind is None else identity(kind, element)
    if inside is not None and neutral is not None:
        mask = hlo.broadcast_in_dim(inside, hlo.shape_of(rows), [0])
        rows = hlo.select(mask, rows, hlo.constant_like(rows, neutral))
    indices, rows = _expand(geometry, columns, rows)
    order = [*geometry.addressed, *geometry.full]
    target = hlo.transpose(operand, order)
    if not geometry.addressed:
        target = hlo.reshape(target, [1, *hlo.shape_of(target)])
    spare = inside is not None and neutral is None
    if spare:
        target, indices = _spare_row(geometry, target, indices, inside)
    result = _emit(op, target, indices, rows, unique=inside is None)
    if spare:
        shape = list(hlo.shape_of(result))
        result = hlo.slice_(result, [0] * len(shape), [shape[0] - 1, *shape[1:]])
    if not geometry.addressed:
        result = hlo.reshape(result, [geometry.shape[d] for d in order])
    return hlo.transpose(result, [order.index(d) for d in range(len(order))])


def _expand(
    geometry: Geometry, columns: dict[int, ir.Value], rows: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Indices `[M, K]` and rows `[M, full...]`: each partial dim one element a row."""
    addressed, full = geometry.addressed, geometry.full
    many = hlo.shape_of(rows)[0]
    widths = [geometry.window[d] for d in addressed]
    grid = [many, *widths]
    element = _index_type(geometry)
    parts = []
    for i, d in enumerate(addressed):
        index = hlo.iota(hlo.tensor(grid, element), i + 1)
        if d in columns:
            start = hlo.convert(columns[d], element)
            start = hlo.broadcast_in_dim(start, grid, [0])
            index = start if widths[i] == 1 else hlo.add(start, index)
        parts.append(hlo.reshape(index, [prod(grid), 1]))
    if not parts:
        parts = [hlo.constant(0, hlo.tensor([many, 1], element))]
    ordered = hlo.transpose(rows, [0, *(d + 1 for d in addressed + full)])
    lengths = [geometry.shape[d] for d in full]
    flat = hlo.reshape(ordered, [prod(grid), *lengths])
    return hlo.concatenate(parts, 1) if len(parts) > 1 else parts[0], flat


def _spare_row(
    geometry: Geometry, target: ir.Value, indices: ir.Value, inside: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Send what must not land to one more slot at the end of the first dim."""
    shape = hlo.shape_of(target)
    element = hlo.element_type(target)
    last = [1, *([0] * (len(shape) - 1))]
    target_ = hlo.pad(target, hlo.scalar(0, element), [0] * len(shape), last)
    many, count = hlo.shape_of(indices)
    widths = [geometry.window[d] for d in geometry.addressed]
    grid = [hlo.shape_of(inside)[0], *widths]
    flags = hlo.reshape(hlo.broadcast_in_dim(inside, grid, [0]), [many])
    mask = hlo.broadcast_in_dim(flags, [many, count], [0])
    spare = [shape[0], *([0] * (count - 1))]
    width = ir.IntegerType(hlo.element_type(indices)).width
    row = hlo.broadcast_in_dim(hlo.constant_ints(spare, width), [many, count], [1])
    return target_, hlo.select(mask, indices, row)


def _emit(
    op: ir.Operation, target: ir.Value, indices: ir.Value, rows: ir.Value, unique: bool
) -> ir.Value:
    """The scatter itself. Masked updates share slots, so they are not unique."""
    count = hlo.shape_of(indices)[1]
    lead = list(range(count))
    windows = list(range(1, len(hlo.shape_of(rows))))
    numbers = stablehlo.ScatterDimensionNumbers.get(windows, lead, [], [], lead, 1)
    declared = hlo.attribute(op, "unique_indices")
    promised = declared is not None and ir.BoolAttr(declared).value
    new = hlo.op(
        "scatter",
        [target, indices, rows],
        [target.type],
        regions=1,
        scatter_dimension_numbers=numbers,
        indices_are_sorted=ir.BoolAttr.get(False),
        unique_indices=ir.BoolAttr.get(promised and unique),
    )
    copy_block(op.regions[0].blocks[0], new.regions[0], [0])
    return new.result
