"""Ops that map elements, hand operands on, or make values of nothing."""

from pcp.dialect.bindings import ir
from pcp.passes.sharding.factors import Dim, FactorRule, Rules
from pcp.passes.sharding.rules.shapes import shape_of


def elementwise(op: ir.Operation) -> FactorRule | None:
    """One factor a dimension; a rank-0 operand beside larger ones has none."""
    shape = shape_of(op.results[0])
    rules = Rules()
    dims = rules.dims(shape)
    operands: list[list[Dim]] = []
    for operand in op.operands:
        if shape_of(operand) == shape:
            operands.append(dims)
        elif not shape_of(operand):
            operands.append([])
        else:
            return None  # a bitcast between widths
    return rules.done(operands, [dims] * len(op.results))


def pairs(op: ir.Operation) -> FactorRule:
    """Operand i is result i."""
    rules = Rules()
    dims = [rules.dims(shape_of(v)) for v in op.operands]
    return rules.done(dims, dims)


def source(op: ir.Operation) -> FactorRule:
    """A constant or iota: cut as its users want it."""
    rules = Rules()
    return rules.done([], [rules.dims(shape_of(op.results[0]))])
