"""What is known about the sign of floating-point values, from their definitions."""

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import constants
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.rewriting import defining

DEPTH = 8

_MOVES = frozenset(
    f"stablehlo.{name}"
    for name in "broadcast_in_dim reshape transpose slice reverse".split()
)
# Never below +0.0 whatever the operand.
_ABOVE = frozenset(f"stablehlo.{name}" for name in "abs exponential logistic".split())
# Not below +0.0 when no operand is.
_KEEP = _MOVES | {
    f"stablehlo.{name}" for name in "add concatenate divide multiply sqrt pad".split()
}


def not_negative(value: ir.Value, depth: int = DEPTH) -> bool:
    """Every element is +0.0 or more, or NaN; never -0.0."""
    number = constants.splat(value)
    if number is not None:
        return number > 0 or (number == 0 and not np.signbit(number))
    op = defining(value)
    if op is None or depth == 0:
        return False
    if op.name in _ABOVE or is_square(op):
        return True
    if op.name == "stablehlo.convert":
        source = op.operands[0]
        floats = hlo.is_float(hlo.element_type(source))
        return floats and not_negative(source, depth - 1)
    if op.name == "stablehlo.select":
        return all(not_negative(v, depth - 1) for v in list(op.operands)[1:])
    if op.name == "stablehlo.reduce" and len(op.results) == 1:
        sums = body_kind(op.regions[0].blocks[0]) == "add"
        return sums and all(not_negative(v, depth - 1) for v in op.operands)
    return op.name in _KEEP and all(not_negative(v, depth - 1) for v in op.operands)


def is_square(op: ir.Operation) -> bool:
    """`x * x`."""
    return op.name == "stablehlo.multiply" and op.operands[0] == op.operands[1]


def never_negative_zero(value: ir.Value, depth: int = DEPTH) -> bool:
    """No element is -0.0, so that adding +0.0 changes no bit."""
    if not_negative(value, depth):
        return True
    number = constants.splat(value)
    if number is not None:
        return number != 0
    op = defining(value)
    if op is None or depth == 0:
        return False
    if op.name == "stablehlo.convert":
        return not hlo.is_float(hlo.element_type(op.operands[0]))
    if op.name == "stablehlo.add":  # -0.0 only as the sum of two of them
        return any(never_negative_zero(v, depth - 1) for v in op.operands)
    if op.name == "stablehlo.select":
        return all(never_negative_zero(v, depth - 1) for v in list(op.operands)[1:])
    return op.name in _MOVES and never_negative_zero(op.operands[0], depth - 1)
