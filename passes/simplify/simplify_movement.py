"""Patterns of pcp-simplify on ops that only move elements: all exact."""

from __future__ import annotations

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import constants
from pcp.passes.core.rewriting import defining, integer, ints
from pcp.passes.simplify.simplify_options import Options

Values = Sequence[ir.Value]

#: What a mean or a variance goes through, operands and result of one type.
SCALINGS = tuple(f"stablehlo.{n}" for n in ("add", "divide", "multiply", "subtract"))


def reshape(op: ir.Operation, options: Options) -> Values | None:
    """To the same shape, twice in a row, and of a scalar spread out."""
    x = op.operands[0]
    if x.type == op.result.type:
        return [x]
    shape = hlo.shape_of(op.result)
    if (inner := defining(x, "reshape")) is not None:
        return [hlo.reshape(inner.operands[0], shape)]
    spread = defining(x, "broadcast_in_dim")
    if spread is not None and hlo.size(spread.operands[0]) == 1 != hlo.size(x):
        return [hlo.splat(hlo.reshape(spread.operands[0], []), shape)]
    return None


# --- transpose ---


def transpose(op: ir.Operation, options: Options) -> Values | None:
    """Of nothing, of a transpose, of a broadcast, and where only 1s move."""
    x, permutation = op.operands[0], ints(op, "permutation")
    if permutation == sorted(permutation):
        return [x]
    if (inner := defining(x, "transpose")) is not None:
        first = ints(inner, "permutation")
        return [hlo.transpose(inner.operands[0], [first[p] for p in permutation])]
    if (inner := defining(x, "broadcast_in_dim")) is not None:
        dims = [permutation.index(d) for d in ints(inner, "broadcast_dimensions")]
        shape = hlo.shape_of(op.result)
        return [hlo.broadcast_in_dim(inner.operands[0], shape, dims)]
    if _keeps_order(hlo.shape_of(x), permutation):
        return [hlo.reshape(x, hlo.shape_of(op.result))]
    return None


def _keeps_order(shape: Sequence[int], permutation: Sequence[int]) -> bool:
    """Whether dims longer than 1 stay in order, so that no element moves."""
    longer = [p for p in permutation if shape[p] != 1]
    return longer == sorted(longer)


# --- broadcast_in_dim ---


def broadcast(op: ir.Operation, options: Options) -> Values | None:
    """Merged into what it repeats; a reshape where it repeats nothing."""
    x, dims = op.operands[0], ints(op, "broadcast_dimensions")
    shape = hlo.shape_of(op.result)
    if x.type == op.result.type and dims == sorted(dims):
        return [x]
    source = defining(x)
    merged = None
    if source is not None and (merge := _MERGES.get(source.name)) is not None:
        merged = merge(source, dims)
    if merged is not None:
        return [hlo.broadcast_in_dim(merged[0], shape, merged[1])]
    if hlo.size(x) == hlo.size(op.result):
        order = sorted(range(len(dims)), key=lambda i: dims[i])
        if order == list(range(len(dims))):
            return [hlo.reshape(x, shape)]
    return None


Merged = tuple[ir.Value, list[int]]


def _of_broadcast(source: ir.Operation, dims: list[int]) -> Merged:
    first = ints(source, "broadcast_dimensions")
    return source.operands[0], [dims[d] for d in first]


def _of_transpose(source: ir.Operation, dims: list[int]) -> Merged:
    permutation = ints(source, "permutation")
    return source.operands[0], [dims[permutation.index(d)] for d in range(len(dims))]


def _of_reshape(source: ir.Operation, dims: list[int]) -> Merged | None:
    """A reshape that only puts in dims of 1."""
    x = source.operands[0]
    places = inserted_ones(hlo.shape_of(x), hlo.shape_of(source.result))
    return None if places is None else (x, [dims[p] for p in places])


def _of_map(source: ir.Operation, dims: list[int]) -> Merged | None:
    """A map of such a reshape and of constants, on what is reshaped.

    A mean that keeps its dims and one that does not are then one value.
    """
    numbers = [constants.splat(x) for x in source.operands]
    others = [x for x, n in zip(source.operands, numbers, strict=True) if n is None]
    inner = defining(others[0], "reshape") if len(others) == 1 else None
    found = None if inner is None else _of_reshape(inner, dims)
    if found is None:
        return None
    x, places = found
    operands = [
        x if number is None else hlo.constant_like(x, number) for number in numbers
    ]
    return hlo.op(source.name, operands, [x.type]).result, places


_MERGES = {
    **dict.fromkeys(SCALINGS, _of_map),
    "stablehlo.broadcast_in_dim": _of_broadcast,
    "stablehlo.reshape": _of_reshape,
    "stablehlo.transpose": _of_transpose,
}


def inserted_ones(short: Sequence[int], long: Sequence[int]) -> list[int] | None:
    """Where the dims of `short` stand in `long`, if the rest of it are 1s."""
    places: list[int] = []
    for place, n in enumerate(long):
        if len(places) < len(short) and n == short[len(places)]:
            places.append(place)
        elif n != 1:
            return None
    return places if len(places) == len(short) else None


# --- slice, concatenate, pad, reverse ---


def slice_(op: ir.Operation, options: Options) -> Values | None:
    """Of everything, of a slice, of one part of a concatenation or padding."""
    x = op.operands[0]
    if x.type == op.result.type:
        return [x]
    window = [ints(op, name) for name in ("start_indices", "limit_indices", "strides")]
    source = defining(x)
    if source is None or (rule := _SLICES.get(source.name)) is None:
        return None
    found = rule(source, *window)
    return None if found is None else [found]


Ints = list[int]


def _slice_of_slice(
    source: ir.Operation, start: Ints, limit: Ints, strides: Ints
) -> ir.Value:
    first, steps = ints(source, "start_indices"), ints(source, "strides")
    outer = list(zip(first, steps, strict=True))
    return hlo.slice_(
        source.operands[0],
        [f + s * step for (f, step), s in zip(outer, start, strict=True)],
        [
            f + (li - 1) * step + 1 if li > s else f + s * step
            for (f, step), s, li in zip(outer, start, limit, strict=True)
        ],
        [step * s for (_, step), s in zip(outer, strides, strict=True)],
    )


def _slice_of_concatenate(
    source: ir.Operation, start: Ints, limit: Ints, strides: Ints
) -> ir.Value | None:
    dimension = integer(source, "dimension")
    offset = 0
    for part in source.operands:
        size = hlo.shape_of(part)[dimension]
        if offset <= start[dimension] and limit[dimension] <= offset + size:
            low, high = list(start), list(limit)
            low[dimension] -= offset
            high[dimension] -= offset
            return hlo.slice_(part, low, high, strides)
        offset += size
    return None


def _slice_of_pad(
    source: ir.Operation, start: Ints, limit: Ints, strides: Ints
) -> ir.Value | None:
    """Wholly inside of what was padded, or wholly in the padding of one dim."""
    x, value = source.operands
    if any(ints(source, "interior_padding")):
        return None
    low = ints(source, "edge_padding_low")
    shape = hlo.shape_of(x)
    spans = list(zip(start, limit, low, shape, strict=True))
    if all(lo <= s and li <= lo + n for s, li, lo, n in spans):
        first = [s - lo for s, _, lo, _ in spans]
        last = [li - lo for _, li, lo, _ in spans]
        return hlo.slice_(x, first, last, strides)
    if any(li <= lo or s >= lo + n for s, li, lo, n in spans):
        counts = [
            -(-(li - s) // step)
            for (s, li, _, _), step in zip(spans, strides, strict=True)
        ]
        return hlo.splat(value, counts)
    return None


def _counts(start: Ints, limit: Ints, strides: Ints) -> Ints:
    """The dims of a slice."""
    windows = zip(start, limit, strides, strict=True)
    return [-(-(li - s) // step) for s, li, step in windows]


def _slice_of_broadcast(
    source: ir.Operation, start: Ints, limit: Ints, strides: Ints
) -> ir.Value | None:
    """Less of what is only repeated."""
    x, dims = source.operands[0], ints(source, "broadcast_dimensions")
    shape = hlo.shape_of(source.result)
    sizes = [
        -(-(li - s) // step) for s, li, step in zip(start, limit, strides, strict=True)
    ]
    repeated = [hlo.shape_of(x)[i] == 1 for i in range(len(dims))]
    for i, d in enumerate(dims):
        if sizes[d] != shape[d] and not repeated[i]:
            return None
    return hlo.broadcast_in_dim(x, sizes, dims)


_SLICES = {
    "stablehlo.broadcast_in_dim": _slice_of_broadcast,
    "stablehlo.concatenate": _slice_of_concatenate,
    "stablehlo.pad": _slice_of_pad,
    "stablehlo.slice": _slice_of_slice,
}


def concatenate(op: ir.Operation, options: Options) -> Values | None:
    """Of one, of empty ones, and of neighbouring slices of one value."""
    dimension = integer(op, "dimension")
    parts = [v for v in op.operands if hlo.shape_of(v)[dimension]]
    if len(parts) == 1:
        return parts
    merged = parts[:1]
    for part in parts[1:]:
        joined = _join(merged[-1], part, dimension)
        merged = [*merged[:-1], joined] if joined is not None else [*merged, part]
    if len(merged) == len(op.operands) or not merged:
        return None
    return [hlo.concatenate(merged, dimension) if len(merged) > 1 else merged[0]]


def _join(left: ir.Value, right: ir.Value, dimension: int) -> ir.Value | None:
    """Two unit-stride slices that touch along `dimension`, as one."""
    a, b = defining(left, "slice"), defining(right, "slice")
    if a is None or b is None or a.operands[0] != b.operands[0]:
        return None
    if any(s != 1 for s in (*ints(a, "strides"), *ints(b, "strides"))):
        return None
    low, high = ints(a, "start_indices"), ints(b, "limit_indices")
    middle, seam = ints(a, "limit_indices"), ints(b, "start_indices")
    for d in range(len(low)):
        same = low[d] == seam[d] and middle[d] == high[d]
        if (d == dimension and middle[d] != seam[d]) or (d != dimension and not same):
            return None
    return hlo.slice_(a.operands[0], low, high, [1] * len(low))


def pad(op: ir.Operation, options: Options) -> Values | None:
    """With nothing, and of a constant that is the padding itself."""
    x, value = op.operands
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    if not any(n for name in names for n in ints(op, name)):
        return [x]
    number = constants.splat(x)
    # As text, so that -0.0 differs from +0.0.
    if number is not None and str(number) == str(constants.splat(value)):
        return [hlo.constant(number, op.result.type)]
    return None


def reverse(op: ir.Operation, options: Options) -> Values | None:
    """Along dims of 1, twice along the same, and in front of a transpose."""
    x = op.operands[0]
    dims = [d for d in ints(op, "dimensions") if hlo.shape_of(x)[d] > 1]
    if not dims:
        return [x]
    if (inner := defining(x, "reverse")) is not None:
        odd = set(ints(inner, "dimensions")) ^ set(dims)
        return [hlo.reverse(inner.operands[0], sorted(odd))]
    moved = defining(x, "transpose")
    if moved is not None and sum(1 for _ in x.uses) == 1:
        permutation = ints(moved, "permutation")
        first = hlo.reverse(moved.operands[0], sorted(permutation[d] for d in dims))
        return [hlo.transpose(first, permutation)]
    return None
