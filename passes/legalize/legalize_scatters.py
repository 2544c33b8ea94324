"""scatter as IREE takes it: in range, whole rows, indexed dims first.

IREE's scatter writes wherever an index points. So indices are clamped, and updates
that must not land are replaced by what changes nothing. Where the indices are
provably in range (see ranges.py) nothing of that is emitted.

A scatter is rewritten to one form: indices `[M, K]`, updates `[M, rows...]`,
operand `[K indexed dims, row dims...]`. A window that covers a part of a dim is
scattered element by element along it. A window that is partly outside is dropped
whole, as XLA does (the specification's interpreter drops element by element).
One of several operands becomes one for each, or, where the body mixes their
values, a loop over the windows.
"""

from collections.abc import Sequence
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.analysis.scatter_geometry import (
    Geometry,
    index_type,
    read_geometry,
    start_columns,
)
from pcp.passes.analysis.update_overlap import origin, reads_elsewhere
from pcp.passes.core.elementwise import body_kind, copy_block, identity, inline
from pcp.passes.core.loops import counted
from pcp.passes.core.rewriting import attributes, defining

Values = Sequence[ir.Value]


def scatter(op: ir.Operation) -> Values | None:
    """One IREE-safe scatter an operand, or None when it is one already."""
    count = len(op.operands) // 2
    if count > 1:
        apart = _are_apart(op.regions[0].blocks[0], count)
        return _split(op, count) if apart else _in_turn(op, count)
    operand, indices, updates = op.operands
    numbers = stablehlo.ScatterDimensionNumbers(
        op.attributes["scatter_dimension_numbers"]
    )
    geometry = read_geometry(numbers, operand, updates)
    separate(op)
    operand, indices, updates = op.operands
    columns, inside = start_columns(op, numbers, geometry, indices)
    if inside is None and _is_regular(numbers, geometry, indices):
        return None
    rows = _flat_updates(numbers, geometry, updates)
    if hlo.shape_of(rows)[0] == 0:
        return [operand]
    if hlo.shape_of(rows)[0] == 1:
        return [_single(op, geometry, columns, inside, rows)]
    return [_scatter_rows(op, geometry, columns, inside, rows)]


def separate(op: ir.Operation) -> None:
    """Copy what is made of other places of the operand: IREE reads it too late.

    Of a scatter its indices and updates, and what an update of a slice writes, but for
    parts of a constant, which nothing is written over.
    """
    scatters = op.name == "stablehlo.scatter"
    if not scatters and defining(origin(op.operands[0]), "constant") is not None:
        return
    for i in (1, 2) if scatters else (1,):
        if reads_elsewhere(op, op.operands[i]):
            op.operands[i] = hlo.optimization_barrier(op.operands[i])


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
        if j % count != i:
            block.erase_argument(j)


def _are_apart(block: ir.Block, count: int) -> bool:
    """Whether each result of a body comes from the values of its own operand."""
    own = {a: {i % count} for i, a in enumerate(block.arguments)}
    *ops, end = [view.operation for view in block.operations]
    for op in ops:
        found = set().union(*(own.get(v, set()) for v in op.operands))
        own.update((result, found) for result in op.results)
    return all(own.get(v, set()) <= {i} for i, v in enumerate(end.operands))


def _in_turn(op: ir.Operation, count: int) -> Values:
    """One window after the other, in a loop: right for any body."""
    operands, every = list(op.operands)[:count], list(op.operands)[count + 1 :]
    numbers = stablehlo.ScatterDimensionNumbers(
        op.attributes["scatter_dimension_numbers"]
    )
    geometry = read_geometry(numbers, operands[0], every[0])
    columns, inside = start_columns(op, numbers, geometry, op.operands[count])
    rows = [_flat_updates(numbers, geometry, updates) for updates in every]
    window = geometry.window

    def step(k: ir.Value, *arrays: ir.Value) -> list[ir.Value]:
        zero = hlo.constant_like(k, 0)
        starts = [
            _entry(columns[d], k) if d in columns else zero
            for d in range(len(geometry.shape))
        ]
        old = [hlo.dynamic_slice(x, starts, window) for x in arrays]
        given = [_window_of(x, k, window) for x in rows]
        new = inline(op.regions[0].blocks[0], [*old, *given])
        if inside is not None:
            lands = _entry(inside, k)
            new = [hlo.select(lands, n, o) for n, o in zip(new, old, strict=True)]
        return [
            hlo.dynamic_update_slice(x, n, starts)
            for x, n in zip(arrays, new, strict=True)
        ]

    return counted(hlo.shape_of(rows[0])[0], operands, step)


def _entry(column: ir.Value, k: ir.Value) -> ir.Value:
    """Element `k` of a `[N]`."""
    return hlo.reshape(hlo.dynamic_slice(column, [k], [1]), [])


def _window_of(rows: ir.Value, k: ir.Value, window: Sequence[int]) -> ir.Value:
    """Window `k` of `[N, window...]`."""
    zero = hlo.constant_like(k, 0)
    starts = [k, *([zero] * len(window))]
    return hlo.reshape(hlo.dynamic_slice(rows, starts, [1, *window]), window)


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
    element = index_type(geometry)
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
