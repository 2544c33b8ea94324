"""Reductions over dimensions."""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import constants
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.rewriting import ints
from pcp.passes.sharding.factors import PASS, REPLICATE, FactorRule, Rules
from pcp.passes.sharding.rules.shapes import shape_of

_KINDS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}


def reduction_kind(block: ir.Block, init: ir.Value) -> str | None:
    """The collective that joins partial results, if the body has one.

    Each member starts from `init`: for the larger and the smaller that is no matter,
    a sum starts from it on one member only (`local.reductions`), and a product has
    to start from one.
    """
    body = body_kind(block) or ""
    element = hlo.element_type(init)
    kind = _KINDS.get(body)
    if kind is None or (hlo.is_complex(element) and kind != "sum"):
        return None
    if isinstance(element, ir.IntegerType) and element.width == 1:
        return None
    return None if kind == "prod" and constants.splat(init) != 1 else kind


def reduce(op: ir.Operation) -> FactorRule:
    """Reduced dimensions are partial results where a collective can join them."""
    count = len(op.operands) // 2
    gone = set(ints(op, "dimensions"))
    kind = REPLICATE
    if count == 1:
        kind = reduction_kind(op.regions[0].blocks[0], op.operands[1]) or REPLICATE
    rules = Rules()
    dims = [
        (rules.factor(n, kind if d in gone else PASS),)
        for d, n in enumerate(shape_of(op.operands[0]))
    ]
    kept = [dim for d, dim in enumerate(dims) if d not in gone]
    return rules.done([dims] * count + [[]] * count, [kept] * count)
