"""Sums that IREE's GPU tiling can split."""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.constants import splat
from pcp.passes.rewriting import before, defining


def negated_sum(op: ir.Operation) -> None:
    """`Σ −x` becomes `−Σ x`, in place: the same numbers, but for the sign of a zero.

    IREE fuses the negation into the combiner as `acc − x`, for which its tiling
    of partial reductions knows no neutral element ("failed to get neutral
    element for reduction"); it is less work, too.
    """
    if len(op.operands) != 2 or not _sums_from_zero(op):
        return
    if (positive := _without_negation(op.operands[0])) is None:
        return
    op.operands[0] = positive
    total = op.results[0]
    with ir.InsertionPoint.after(op), op.location:
        negative = hlo.negate(total)
    total.replace_all_uses_except(negative, negative.owner.operation)


def _sums_from_zero(op: ir.Operation) -> bool:
    body = list(op.regions[0].blocks[0].operations)
    adds = len(body) == 2 and body[0].operation.name == "stablehlo.add"
    return adds and splat(op.operands[1]) == 0


def _without_negation(value: ir.Value) -> ir.Value | None:
    """`x` where `value` is −x, seen through ops that only move elements."""
    op = defining(value)
    if op is None:
        return None
    if op.name == "stablehlo.negate":
        return op.operands[0]
    if op.name not in ("stablehlo.reshape", "stablehlo.transpose"):
        return None
    if (inner := _without_negation(op.operands[0])) is None:
        return None
    with before(op):
        if op.name == "stablehlo.reshape":
            return hlo.reshape(inner, hlo.shape_of(value))
        order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
        return hlo.transpose(inner, order)
