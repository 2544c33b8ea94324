"""What spreads one number over a tensor, made apart for each op that reads it.

Two parameters of one shape share the constants of their updates. If these were one
value, the layout of one parameter would be carried to the other through them. What
says how one is to lie is made again with it.
"""

from pcp.dialect.bindings import ir
from pcp.passes.core import constants
from pcp.passes.core.walk import block_of, walk
from pcp.passes.sharding.layout import SHARDING

#: Ops that say how tensors are to lie, and compute nothing.
HINTS = ("pcp.constraint", "pcp.barrier_prop")


def split(function: ir.Operation) -> None:
    """Give every further reader of an expansion a copy of its own."""
    for op in reversed(list(walk(block_of(function, 0)))):  # readers first
        if not _is_expansion(op) or SHARDING in op.attributes:
            continue
        for use in list(op.results[0].uses)[1:]:
            with ir.InsertionPoint(op):
                copy = op.clone()
            use.owner.operands[use.operand_number] = copy.operation.results[0]


def _is_expansion(op: ir.Operation) -> bool:
    if op.name in HINTS:
        owner = op.operands[0].owner
        return not isinstance(owner, ir.Block) and _is_expansion(owner.operation)
    if op.name == "stablehlo.broadcast_in_dim":
        return not ir.RankedTensorType(op.operands[0].type).rank
    if op.name not in constants.CONSTANTS:
        return False
    value = op.results[0]
    attribute = constants.elements(value)
    ranked = isinstance(value.type, ir.RankedTensorType) and value.type.rank
    return bool(ranked and attribute is not None and attribute.is_splat)
