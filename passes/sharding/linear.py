"""Ops that are linear, and so may be applied to partial sums as they stand."""

from collections.abc import Iterable

from pcp.dialect.bindings import ir
from pcp.passes.core import constants
from pcp.passes.core.elementwise import body_kind

_LINEAR = ("negate", "reshape", "transpose", "slice", "convert")


def linear_in(op: ir.Operation) -> Iterable[ir.Value]:
    """The operands in which the op is linear together, if it is."""
    name = op.name.removeprefix("stablehlo.")
    operands = list(op.operands)
    if name in ("add", "subtract"):
        return operands
    if name in _LINEAR:
        same = name != "convert" or _widens(op)
        return operands[:1] if same else []
    if name == "reduce" and len(operands) == 2:
        sums = body_kind(op.regions[0].blocks[0]) == "add"
        return operands[:1] if sums and constants.splat(operands[1]) == 0 else []
    if name in ("multiply", "divide"):
        if constants.splat(operands[1]) is not None:
            return operands[:1]
        if name == "multiply" and constants.splat(operands[0]) is not None:
            return operands[1:]
    return []


def _widens(op: ir.Operation) -> bool:
    """A conversion between floats that loses nothing."""
    old, new = (
        ir.RankedTensorType(v.type).element_type
        for v in (op.operands[0], op.results[0])
    )
    floats = isinstance(old, ir.FloatType) and isinstance(new, ir.FloatType)
    return floats and new.width > old.width
