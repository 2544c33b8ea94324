"""Small questions and products that several chapters need."""

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value

#: Ops that leave a splat a splat of the same number.
_TRANSPARENT = frozenset(
    {"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"}
)


def scale(x: Value, factor: float) -> Value:
    """`factor · x`."""
    return hlo.multiply(x, hlo.constant_like(x, factor))


def splat_of(x: Value) -> float | int | None:
    """The number at every position of a real constant, or None if not known."""
    while isinstance(x.owner, ir.Operation | ir.OpView):
        op = x.owner
        if op.name in _TRANSPARENT:
            x = op.operands[0]
        elif op.name == "stablehlo.convert" and _is_wide(op):
            x = op.operands[0]
        elif op.name in ("stablehlo.constant", "arith.constant"):
            return _number(op.attributes["value"])
        else:
            return None
    return None


def _is_wide(op: ir.Operation) -> bool:
    """Whether a convert keeps small whole numbers: to a float of any width."""
    return hlo.is_float(hlo.element_type(op.results[0]))


def _number(attribute: ir.Attribute) -> float | int | None:
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    value = attribute.get_splat_value()
    if isinstance(value, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
        return value.value
    return None


def constant_array(x: Value) -> np.ndarray | None:
    """The integers of a constant operand as an array, or None if not known."""
    op = x.owner
    if not isinstance(op, ir.Operation | ir.OpView):
        return None
    if op.name not in ("stablehlo.constant", "arith.constant"):
        return None
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr):
        return None
    return np.array(list(attribute)).reshape(hlo.shape_of(x))
