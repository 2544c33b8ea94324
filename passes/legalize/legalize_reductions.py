"""Sums that IREE's tiling can split."""

from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.constants import splat
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.narrow_floats import is_narrow
from pcp.passes.core.rewriting import before, defining


def of_nothing(op: ir.Operation) -> list[ir.Value] | None:
    """A product or convolution that adds up nothing is 0.

    IREE divides by the size of what it contracts while it compiles (SIGFPE).
    """
    if all(hlo.size(operand) for operand in op.operands):
        return None
    return [hlo.zeros(op.result.type)]


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


def step_by_step(op: ir.Operation) -> list[ir.Value] | None:
    """The sum of all elements, dimension by dimension, where rows or columns meet it.

    IREE joins a sum with what makes its summands. With a tensor among that which is
    spread along one of the dimensions, a sum over several at once does not compile:
    `Σ w[n] x[m, n]` is taken for a contraction to a scalar on CPUs ("invalid
    accumulator/result vector shape"), and on GPUs it fails for every function of the
    two ("failed to distribute"). The sum is over the last dimension first.
    """
    shape = hlo.shape_of(op.operands[0])
    if len(op.operands) != 2 or len(shape) < 2 or hlo.shape_of(op.results[0]):
        return None
    if not _sums_from_zero(op) or not _meets_spread(op.operands[0]):
        return None
    element = hlo.element_type(op.operands[0])
    total = op.operands[0]
    if is_narrow(element):  # rounded once, at the end
        total = hlo.convert(total, ir.F32Type.get())
    for dim in reversed(range(len(shape))):
        total = hlo.reduce_sum(total, [dim])
    return [hlo.convert(total, element) if is_narrow(element) else total]


def _meets_spread(value: ir.Value) -> bool:
    """Whether a tensor that has some of the dimensions is joined with others."""
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        op = defining(current := pending.pop())
        if current in seen or op is None:
            continue
        seen.add(current)
        if op.name == "stablehlo.broadcast_in_dim":
            if 1 < prod(hlo.shape_of(op.operands[0])) < prod(hlo.shape_of(current)):
                return True
        elif op.name in ELEMENTWISE:
            pending += op.operands
    return False


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
