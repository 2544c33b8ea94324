"""`pcp.stop_gradient`: what the passes know of it, and where it ends.

A stop says something to derivatives only. A frontend leaves it where the program has
it, the derivative passes honour it in each mode and order, and everything behind the
last derivative is spared it: `forget_derivatives` is the one place where it goes.
"""

from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import STOP, defining, operations, replace

#: Rules of derivatives: those that were asked for are made.
RULES = ("pcp.custom_jvp", "pcp.custom_vjp", "pcp.without_derivative")


def needless(op: ir.Operation) -> list[ir.Value] | None:
    """What a stop is without it, if no derivative can reach its operand; else None.

    Integers have none, a constant's is zero, and what is stopped is stopped.
    """
    value = op.operands[0]
    type_, made_by = value.type, defining(value)
    if isinstance(type_, ir.RankedTensorType):
        if isinstance(type_.element_type, ir.IntegerType | ir.IndexType):
            return [value]
    if made_by is not None and made_by.name in (STOP, "stablehlo.constant"):
        return [value]
    return None


def forget_derivatives(module: ir.Module) -> None:
    """Drop all that only a derivative would have asked for: stops and own rules.

    A stop gives way to its operand. What is derived afterwards knows nothing of them.
    """
    for op in operations(module):
        if op.name == STOP:
            replace(op, [op.operands[0]])
        elif op.name in RULES:
            op.erase()
