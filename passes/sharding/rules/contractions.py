"""Dot products."""

from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.sharding.factors import PASS, REPLICATE, Dim, FactorRule, Rules
from pcp.passes.sharding.rules.shapes import is_predicate, shape_of


def dot_general(op: ir.Operation) -> FactorRule:
    n = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    lb, rb = list(n.lhs_batching_dimensions), list(n.rhs_batching_dimensions)
    lc, rc = list(n.lhs_contracting_dimensions), list(n.rhs_contracting_dimensions)
    return contraction(Rules(), op, (lb, rb), (lc, rc))


def contraction(
    rules: Rules,
    op: ir.Operation,
    batch: tuple[list[int], list[int]],
    contract: tuple[list[int], list[int]],
) -> FactorRule:
    """Batch and free dimensions go through, contracted ones leave partial sums."""
    sides: list[dict[int, Dim]] = [{}, {}]
    ls, rs = shape_of(op.operands[0]), shape_of(op.operands[1])
    kind = REPLICATE if is_predicate(op.results[0]) else "sum"
    for (left, right), what in ((batch, PASS), (contract, kind)):
        for i, j in zip(left, right, strict=True):
            sides[0][i] = sides[1][j] = (rules.factor(ls[i], what),)
    result = [sides[0][i] for i in batch[0]]
    for side, shape in zip(sides, (ls, rs), strict=True):
        for d, n in enumerate(shape):
            if d not in side:
                side[d] = (rules.factor(n),)
                result.append(side[d])
    dims = [[side[d] for d in range(len(side))] for side in sides]
    return rules.done(dims, [result])


def dot(op: ir.Operation) -> FactorRule:
    rank = len(shape_of(op.operands[0]))
    return contraction(Rules(), op, ([], []), ([rank - 1], [0]))
