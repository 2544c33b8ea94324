"""Data movement with static positions: all linear, so each rule is a transpose."""

from itertools import accumulate

from pcp.autodiff.core.kinds import Linear, NoGradient, Site, Vjp
from pcp.autodiff.core.values import sum_all, sum_over
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


def _zero(like: Value) -> Value:
    return hlo.scalar(0, hlo.element_type(like))


def _broadcast_in_dim(at: Site, g: Value) -> Value:
    """Sum over the dimensions that were added or stretched.

    Dimensions of size 1 are never summed: a reshape adds and drops them.
    """
    shape, dims = hlo.shape_of(at[0]), at.ints("broadcast_dimensions")
    wide = hlo.shape_of(g)
    kept = [d for d, n in zip(dims, shape, strict=True) if n == wide[d] != 1]
    summed = [d for d, n in enumerate(wide) if n != 1 and d not in kept]
    partial = sum_over(g, summed)
    if kept == sorted(kept):
        return hlo.reshape(partial, shape)
    ascending = hlo.reshape(partial, [wide[d] for d in sorted(kept)])
    order = [sorted(kept).index(d) for d in kept]
    return hlo.reshape(hlo.transpose(ascending, order), shape)


def _reshape(at: Site, g: Value) -> Value:
    return hlo.reshape(g, hlo.shape_of(at[0]))


def _transpose(at: Site, g: Value) -> Value:
    permutation = at.ints("permutation")
    return hlo.transpose(g, [permutation.index(i) for i in range(len(permutation))])


def _slice(at: Site, g: Value) -> Value:
    """Pad back; the stride becomes interior padding."""
    start, strides = at.ints("start_indices"), at.ints("strides")
    high = []
    for n, m, lo, step in zip(
        hlo.shape_of(at[0]), hlo.shape_of(g), start, strides, strict=True
    ):
        reached = lo + ((m - 1) * step + 1 if m else 0)
        high.append(n - reached)
    return hlo.pad(g, _zero(g), start, high, [step - 1 for step in strides])


def _pad_operand(at: Site, g: Value) -> Value:
    """Undo the edges (of either sign), then skip what lies between."""
    low, high = at.ints("edge_padding_low"), at.ints("edge_padding_high")
    trimmed = g
    if any(low) or any(high):
        trimmed = hlo.pad(g, _zero(g), [-n for n in low], [-n for n in high])
    interior = at.ints("interior_padding")
    if not any(interior):
        return trimmed
    shape = hlo.shape_of(trimmed)
    return hlo.slice_(trimmed, [0] * len(shape), shape, [n + 1 for n in interior])


def _pad_value(at: Site, g: Value) -> Value:
    """What of Σg did not come from the operand."""
    return hlo.subtract(sum_all(g), sum_all(_pad_operand(at, g)))


def _concatenate(at: Site, g: Value) -> list[Value | None]:
    axis = at.int("dimension")
    shape = hlo.shape_of(g)
    sizes = [hlo.shape_of(x)[axis] for x in at.inputs]
    ends = list(accumulate(sizes))
    return [
        _piece(g, shape, axis, end - n, end) if wanted else None
        for n, end, wanted in zip(sizes, ends, at.wanted, strict=True)
    ]


def _piece(g: Value, shape: tuple[int, ...], axis: int, lo: int, hi: int) -> Value:
    start, limit = [0] * len(shape), list(shape)
    start[axis], limit[axis] = lo, hi
    return hlo.slice_(g, start, limit)


def _reverse(at: Site, g: Value) -> Value:
    return hlo.reverse(g, at.ints("dimensions"))


def _optimization_barrier(at: Site) -> list[Value | None]:
    """One barrier over the live cotangents, grouped as the primal was."""
    live = [g for g in at.cotangents if g is not None]
    barrier = hlo.op("optimization_barrier", live, [g.type for g in live])
    held = iter(barrier.results)
    return [None if g is None else next(held) for g in at.cotangents]


_no_input = NoGradient("it has no differentiable input")

RULES = {
    "broadcast_in_dim": Linear(_broadcast_in_dim),
    "reshape": Linear(_reshape),
    "transpose": Linear(_transpose),
    "slice": Linear(_slice),
    "pad": Linear(_pad_operand, _pad_value),
    "concatenate": Linear(every=_concatenate),
    "reverse": Linear(_reverse),
    "optimization_barrier": Vjp(_optimization_barrier),
    "constant": _no_input,
    "arith.constant": _no_input,
    "iota": _no_input,
    "dynamic_iota": _no_input,
    "get_dimension_size": NoGradient("a shape does not depend on the values"),
}
