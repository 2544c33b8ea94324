"""What spreads one number over a tensor, made apart for each op that reads it.

Two parameters of one shape share the constants of their updates. If these were one
value, the layout of one parameter would be carried to the other through them.
"""

from pcp.dialect.bindings import ir
from pcp.passes import constants
from pcp.passes.sharding.flow import block_of, walk
from pcp.passes.sharding.layout import SHARDING


def split(function: ir.Operation) -> None:
    """Give every further reader of an expansion a copy of its own."""
    for op in list(walk(block_of(function, 0))):
        if not _is_expansion(op) or SHARDING in op.attributes:
            continue
        for use in list(op.results[0].uses)[1:]:
            with ir.InsertionPoint(op):
                copy = op.clone()
            use.owner.operands[use.operand_number] = copy.operation.results[0]


def _is_expansion(op: ir.Operation) -> bool:
    if op.name == "stablehlo.broadcast_in_dim":
        return not ir.RankedTensorType(op.operands[0].type).rank
    if op.name not in constants.CONSTANTS:
        return False
    value = op.results[0]
    attribute = constants.elements(value)
    ranked = isinstance(value.type, ir.RankedTensorType) and value.type.rank
    return bool(ranked and attribute is not None and attribute.is_splat)
