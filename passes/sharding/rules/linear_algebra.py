"""Linear algebra and top_k: whole matrices, batches go through."""

from pcp.dialect.bindings import ir
from pcp.passes.sharding.factors import REPLICATE, FactorRule, Rules
from pcp.passes.sharding.rules.shapes import shape_of, unchanged


def cholesky(op: ir.Operation) -> FactorRule:
    rank = len(shape_of(op.results[0]))
    return unchanged(op, {rank - 2, rank - 1})


def triangular_solve(op: ir.Operation) -> FactorRule:
    """The right-hand sides are solved for independently."""
    rules = Rules()
    *batch, m, n = shape_of(op.operands[1])
    shared = rules.dims(tuple(batch))
    left = ir.BoolAttr(op.attributes["left_side"]).value
    order = m if left else n
    matrix = [(rules.factor(order, REPLICATE),) for _ in range(2)]
    bound = (rules.factor(order, REPLICATE),)
    free = (rules.factor(n if left else m),)
    b = [*shared, bound, free] if left else [*shared, free, bound]
    return rules.done([[*shared, *matrix], b], [b])


def top_k(op: ir.Operation) -> FactorRule:
    return unchanged(op, {len(shape_of(op.operands[0])) - 1})
