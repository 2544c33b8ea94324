"""Batch normalization."""

from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import integer
from pcp.passes.sharding.factors import PASS, REPLICATE, Dim, FactorRule, Rules
from pcp.passes.sharding.rules.shapes import shape_of


def batch_norm(op: ir.Operation) -> FactorRule:
    """The features; in inference, which takes no mean, everything else too."""
    rules = Rules()
    feature = integer(op, "feature_index")
    shape = shape_of(op.operands[0])
    kind = PASS if op.name.endswith("inference") else REPLICATE
    dims: list[Dim] = [
        (rules.factor(n, PASS if d == feature else kind),) for d, n in enumerate(shape)
    ]

    def tensor(value: ir.Value) -> list[Dim]:
        return dims if shape_of(value) == shape else [dims[feature]]

    return rules.done(map(tensor, op.operands), map(tensor, op.results))
