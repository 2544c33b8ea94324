"""Reductions over dimensions."""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes import constants
from pcp.passes.elementwise import body_kind
from pcp.passes.rewriting import ints
from pcp.passes.sharding.factors import PASS, REPLICATE, Rule, Rules
from pcp.passes.sharding.rules.shapes import shape_of

_NEUTRAL = {"add": 0, "multiply": 1}
_KINDS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}


def reduction_kind(block: ir.Block, init: ir.Value) -> str | None:
    """The collective that joins partial results, if the body and its init have one.

    Each member starts from `init`, so it has to be the body's neutral element.
    """
    body = body_kind(block) or ""
    element = hlo.element_type(init)
    kind = _KINDS.get(body)
    if kind is None or (hlo.is_complex(element) and kind != "sum"):
        return None
    number = constants.splat(init)
    if number is None or (isinstance(element, ir.IntegerType) and element.width == 1):
        return None
    if kind in ("max", "min"):
        return kind if _is_extreme(number, element, kind) else None
    return kind if number == _NEUTRAL[body] else None


def _is_extreme(number: float | int, element: ir.Type, kind: str) -> bool:
    if hlo.is_float(element):
        return number == (float("-inf") if kind == "max" else float("inf"))
    integer_type = ir.IntegerType(element)
    bits = integer_type.width
    if integer_type.is_unsigned:
        low, high = 0, 2**bits - 1
    else:
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return number == (low if kind == "max" else high)


def reduce(op: ir.Operation) -> Rule:
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
