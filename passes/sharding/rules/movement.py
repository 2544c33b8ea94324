"""Ops that move elements."""

from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import integer, ints
from pcp.passes.sharding.factors import REPLICATE, Dim, FactorRule, Rules
from pcp.passes.sharding.rules.shapes import reaching, shape_of, unchanged


def broadcast_in_dim(op: ir.Operation) -> FactorRule:
    rules = Rules()
    source = shape_of(op.operands[0])
    result = rules.dims(shape_of(op.results[0]))
    operand: list[Dim] = []
    for n, d in zip(source, ints(op, "broadcast_dimensions"), strict=True):
        kept = n == rules.sizes[result[d][0]]
        operand.append(result[d] if kept else (rules.factor(n, REPLICATE),))
    return rules.done([operand], [result])


def transpose(op: ir.Operation) -> FactorRule:
    rules = Rules()
    operand = rules.dims(shape_of(op.operands[0]))
    return rules.done([operand], [[operand[p] for p in ints(op, "permutation")]])


def _differing(op: ir.Operation) -> set[int]:
    """The dimensions in which operand 0 and the result differ."""
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    return {d for d, (m, n) in enumerate(zip(before, after, strict=True)) if m != n}


def dynamic_slice(op: ir.Operation) -> FactorRule:
    return unchanged(op, _differing(op))


def slice_(op: ir.Operation) -> FactorRule:
    """Element j of the result is element start + stride * j of the operand."""
    starts, strides = ints(op, "start_indices"), ints(op, "strides")
    moved = {d: [{"step": strides[d], "low": starts[d]}] for d in _differing(op)}
    return reaching(op, moved)


def pad(op: ir.Operation) -> FactorRule:
    """Element i of the operand is element low + (interior + 1) * i of the result."""
    low, high, interior = (
        ints(op, name)
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    moved = {
        d: [{"low": -low[d], "base": interior[d] + 1}]
        for d in range(len(low))
        if low[d] or high[d] or interior[d]
    }
    return reaching(op, moved)


def concatenate(op: ir.Operation) -> FactorRule:
    """Each operand is an interval of the result."""
    d = integer(op, "dimension")
    entries, offset = [], 0
    for operand in op.operands:
        entries.append({"low": -offset})
        offset += shape_of(operand)[d]
    return reaching(op, {d: entries})


def reverse(op: ir.Operation) -> FactorRule:
    """The first part needs what the last member has."""
    shape = shape_of(op.results[0])
    moved = {d: [{"step": -1, "low": shape[d] - 1}] for d in ints(op, "dimensions")}
    return reaching(op, moved)


def sort(op: ir.Operation) -> FactorRule:
    return unchanged(op, {integer(op, "dimension")})


def dynamic_update_slice(op: ir.Operation) -> FactorRule:
    whole, update = shape_of(op.operands[0]), shape_of(op.operands[1])
    moved = {d for d, (m, n) in enumerate(zip(whole, update, strict=True)) if m != n}
    return unchanged(op, moved)


def fft(op: ir.Operation) -> FactorRule:
    rank = len(shape_of(op.results[0]))
    return unchanged(op, set(range(rank - len(ints(op, "fft_length")), rank)))
