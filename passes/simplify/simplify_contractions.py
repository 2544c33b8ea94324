"""Patterns of pcp-simplify on contractions, reductions, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core import constants
from pcp.passes.core.elementwise import body_kind, copy_block, identity, inline
from pcp.passes.core.rewriting import attributes, defining, integer, ints
from pcp.passes.simplify.simplify_movement import inserted_ones
from pcp.passes.simplify.simplify_options import Options

Values = Sequence[ir.Value]


# --- dot_general ---


def dot_of_transposes(op: ir.Operation, options: Options) -> Values | None:
    """A transposed operand: say it in the dimension numbers where they can.

    They can when the dims that are neither batch nor contracted stay in order.
    """
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    sides = (
        (numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions),
        (numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions),
    )
    found = [_untransposed(v, *s) for v, s in zip(op.operands, sides, strict=True)]
    if found == [None, None]:
        return None
    (lhs, lb, lc), (rhs, rb, rc) = (
        new or (old, list(side[0]), list(side[1]))
        for new, old, side in zip(found, op.operands, sides, strict=True)
    )
    kept = attributes(op)
    kept["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(lb, rb, lc, rc)
    return hlo.op("dot_general", [lhs, rhs], [op.result.type], **kept).results


def _untransposed(
    value: ir.Value, batch: Sequence[int], contract: Sequence[int]
) -> tuple[ir.Value, list[int], list[int]] | None:
    source = defining(value, "transpose")
    if source is None:
        return None
    permutation = ints(source, "permutation")
    free = [p for d, p in enumerate(permutation) if d not in {*batch, *contract}]
    if free != sorted(free):
        return None
    moved = [[permutation[d] for d in dims] for dims in (batch, contract)]
    return source.operands[0], moved[0], moved[1]


def transposed_dot(op: ir.Operation, options: Options) -> Values | None:
    """A product transposed is the product of the operands in the other order."""
    dot = defining(op.operands[0], "dot_general")
    if dot is None or _uses(dot.result) != 1:
        return None
    numbers = stablehlo.DotDimensionNumbers(dot.attributes["dot_dimension_numbers"])
    batch = len(numbers.lhs_batching_dimensions)
    lhs, rhs = dot.operands
    summed = len(numbers.lhs_contracting_dimensions)
    left = len(hlo.shape_of(lhs)) - batch - summed
    rank = len(hlo.shape_of(dot.result))
    swapped = [*range(batch), *range(batch + left, rank), *range(batch, batch + left)]
    # A precision or an algorithm names its operands in order.
    plain = set(attributes(dot)) == {"dot_dimension_numbers"}
    if ints(op, "permutation") != swapped or not plain:
        return None
    return [
        hlo.dot_general(
            rhs,
            lhs,
            batch=(numbers.rhs_batching_dimensions, numbers.lhs_batching_dimensions),
            contract=(
                numbers.rhs_contracting_dimensions,
                numbers.lhs_contracting_dimensions,
            ),
            element=hlo.element_type(dot.result),
        )
    ]


def _uses(value: ir.Value) -> int:
    return sum(1 for _ in value.uses)


# --- sums of padded parts ---


def add_padded(op: ir.Operation, options: Options) -> Values | None:
    """Parts padded with zeros to places side by side: a concatenation.

    It is what differentiating a split leaves. +0.0 takes the place of a -0.0
    that was added to a zero, so `signed-zeros=true` keeps the sum.
    """
    if options.signed_zeros:
        return None
    parts = [part for v in op.operands if (part := _placed(v)) is not None]
    if len(parts) != 2:
        return None
    (x, low), (y, at) = sorted(parts, key=lambda part: part[1])
    shape = hlo.shape_of(op.result)
    dims = [
        d
        for d, n in enumerate(shape)
        if not (low[d] == at[d] and hlo.shape_of(x)[d] == hlo.shape_of(y)[d])
    ]
    if len(dims) != 1:
        return None
    (d,) = dims
    gap = at[d] - low[d] - hlo.shape_of(x)[d]
    if gap != 0:
        return None
    joined = hlo.concatenate([x, y], d)
    high = [
        n - lo - m for n, lo, m in zip(shape, low, hlo.shape_of(joined), strict=True)
    ]
    if not any(low) and not any(high):
        return [joined]
    return [hlo.pad(joined, hlo.scalar(0, hlo.element_type(x)), low, high)]


def _placed(value: ir.Value) -> tuple[ir.Value, list[int]] | None:
    """What a zero padding holds, and where; edges only, none of them negative."""
    source = defining(value, "pad")
    if source is None or constants.splat(source.operands[1]) != 0:
        return None
    low, high = ints(source, "edge_padding_low"), ints(source, "edge_padding_high")
    if any(ints(source, "interior_padding")) or min(*low, *high, 0) < 0:
        return None
    return source.operands[0], low


# --- reduce ---


def _kind(op: ir.Operation) -> str | None:
    """The body of a reduce of one operand from its identity, if it is one op."""
    if len(op.results) != 1:
        return None
    kind = body_kind(op.regions[0].blocks[0])
    if kind is None or kind == "set":
        return None
    neutral = identity(kind, hlo.element_type(op.result))
    starts = constants.splat(op.operands[1])
    return kind if starts is not None and starts == neutral else None


def _again(op: ir.Operation, x: ir.Value, dimensions: Sequence[int]) -> ir.Value:
    """The same reduction of another value, over other dims."""
    kept = [n for d, n in enumerate(hlo.shape_of(x)) if d not in dimensions]
    new = hlo.op(
        "reduce",
        [x, op.operands[1]],
        [hlo.tensor(kept, hlo.element_type(x))],
        regions=1,
        dimensions=hlo.i64s(sorted(dimensions)),
    )
    copy_block(op.regions[0].blocks[0], new.regions[0], [0])
    return new.result


def reduce_nothing(op: ir.Operation, options: Options) -> Values | None:
    """Over no dims or over dims of 1."""
    dims = ints(op, "dimensions")
    x = op.operands[0]
    if _kind(op) is None or prod(hlo.shape_of(x)[d] for d in dims) != 1:
        return None
    return [hlo.reshape(x, hlo.shape_of(op.result))]


def reduce_moved(op: ir.Operation, options: Options) -> Values | None:
    """Of a transpose that leaves the kept dims in order, or of put-in 1s."""
    if _kind(op) is None:
        return None
    x, dims = op.operands[0], ints(op, "dimensions")
    if (source := defining(x, "transpose")) is not None:
        permutation = ints(source, "permutation")
        kept = [p for d, p in enumerate(permutation) if d not in dims]
        if kept == sorted(kept):
            return [_again(op, source.operands[0], [permutation[d] for d in dims])]
    if (source := defining(x, "reshape")) is not None:
        inner = source.operands[0]
        places = inserted_ones(hlo.shape_of(inner), hlo.shape_of(x))
        if places is not None:
            over = [i for i, place in enumerate(places) if place in dims]
            return [hlo.reshape(_again(op, inner, over), hlo.shape_of(op.result))]
    return None


_IDEMPOTENT = frozenset(["maximum", "minimum", "and", "or"])


def reduce_broadcast(op: ir.Operation, options: Options) -> Values | None:
    """Over dims that only repeat: max once, a sum as a product."""
    kind, source = _kind(op), defining(op.operands[0], "broadcast_in_dim")
    if kind is None or source is None:
        return None
    x, places = source.operands[0], ints(source, "broadcast_dimensions")
    dims = ints(op, "dimensions")
    shape = hlo.shape_of(source.result)
    sizes = hlo.shape_of(x)
    repeated = [
        d
        for d in dims
        if shape[d] != 1 and (d not in places or sizes[places.index(d)] == 1)
    ]
    if not repeated:
        return None
    element = hlo.element_type(x)
    exact = kind in _IDEMPOTENT or isinstance(element, ir.IntegerType)
    if kind not in (*_IDEMPOTENT, "add") or not (exact or options.reassociate):
        return None
    rest = [1 if d in repeated else n for d, n in enumerate(shape)]
    small = hlo.broadcast_in_dim(x, rest, places)
    result = _again(op, small, dims)
    if kind == "add":
        times = prod(shape[d] for d in repeated)
        result = hlo.multiply(result, hlo.constant_like(result, times))
    return [result]


def reduce_reduced(op: ir.Operation, options: Options) -> Values | None:
    """Twice the same way: at once."""
    kind, source = _kind(op), defining(op.operands[0], "reduce")
    if kind is None or source is None or _kind(source) != kind:
        return None
    element = hlo.element_type(op.result)
    exact = kind in _IDEMPOTENT or isinstance(element, ir.IntegerType)
    if not (exact or options.reassociate) or _uses(source.result) != 1:
        return None
    first = ints(source, "dimensions")
    left = [d for d in range(len(hlo.shape_of(source.operands[0]))) if d not in first]
    over = [*first, *(left[d] for d in ints(op, "dimensions"))]
    return [_again(op, source.operands[0], over)]


# --- gathers and scatters of rows in order ---


def _run(indices: ir.Value, vector: int, size: int) -> int | None:
    """The start of row indices that count up by one inside of `size` rows."""
    shape = hlo.shape_of(indices)
    trailing = shape[:-1] if vector == len(shape) - 1 and shape[-1] == 1 else shape
    if len(trailing) != 1 or vector < len(trailing):
        return None
    op = defining(indices)
    if op is not None and op.name == "stablehlo.reshape":
        return _run_of(op.operands[0], trailing[0], size)
    return _run_of(indices, trailing[0], size)


def _run_of(value: ir.Value, count: int, size: int) -> int | None:
    if (op := defining(value, "iota")) is not None:
        along = hlo.shape_of(value)[integer(op, "iota_dimension")]
        return 0 if along == count == hlo.size(value) and count <= size else None
    known = constants.array(value)
    if known is None or known.size != count or not count:
        return None
    start = int(known.flat[0])
    in_order = (np.diff(known.reshape(-1).astype(np.int64)) == 1).all()
    return start if in_order and 0 <= start and start + count <= size else None


def gather_in_order(op: ir.Operation, options: Options) -> Values | None:
    """Rows `s, s+1, ...` of a table: a slice."""
    x, indices = op.operands
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    shape = hlo.shape_of(x)
    rest = list(range(1, len(shape)))
    rows = (
        list(numbers.collapsed_slice_dims) == [0]
        and list(numbers.start_index_map) == [0]
        and not numbers.operand_batching_dims
        and list(numbers.offset_dims) == rest
        and ints(op, "slice_sizes") == [1, *shape[1:]]
    )
    if not rows:
        return None
    start = _run(indices, numbers.index_vector_dim, shape[0])
    if start is None:
        return None
    count = hlo.shape_of(op.result)[0]
    low, high = [start, *([0] * len(rest))], [start + count, *shape[1:]]
    return [hlo.slice_(x, low, high, [1] * len(shape))]


def scatter_in_order(op: ir.Operation, options: Options) -> Values | None:
    """Rows `s, s+1, ...`: combined with the slice that they are."""
    if len(op.operands) != 3:
        return None
    x, indices, updates = op.operands
    numbers = stablehlo.ScatterDimensionNumbers(
        op.attributes["scatter_dimension_numbers"]
    )
    shape = hlo.shape_of(x)
    rest = list(range(1, len(shape)))
    rows = (
        list(numbers.inserted_window_dims) == [0]
        and list(numbers.scattered_dims_to_operand_dims) == [0]
        and not numbers.input_batching_dims
        and list(numbers.update_window_dims) == rest
        and hlo.shape_of(updates)[1:] == shape[1:]
    )
    start = _run(indices, numbers.index_vector_dim, shape[0]) if rows else None
    if start is None:
        return None
    end = start + hlo.shape_of(updates)[0]
    unit, zeros = [1] * len(shape), [0] * len(rest)
    middle = hlo.slice_(x, [start, *zeros], [end, *shape[1:]], unit)
    (middle,) = inline(op.regions[0].blocks[0], [middle, updates])
    parts = [middle]
    if start:
        parts.insert(0, hlo.slice_(x, [0, *zeros], [start, *shape[1:]], unit))
    if end < shape[0]:
        parts.append(hlo.slice_(x, [end, *zeros], list(shape), unit))
    return [hlo.concatenate(parts, 0) if len(parts) > 1 else middle]
