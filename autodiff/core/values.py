"""Small questions and products that several chapters need.

The rule for narrow floats (16 bits and fewer) stands here: *a sum that a derivative
adds to the program is made in f32 and rounded once*. A cotangent keeps its primal's
type, but the row sums of a bias, the contraction over a batch, the rows of an
embedding that one token gathers, a count of ties: each would stop growing at 256
terms in bf16. Sums of the program itself stay as they were written, and so do
sums of the few terms of a fan-out.
"""

from collections.abc import Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value

#: Ops that leave a splat a splat of the same number.
_TRANSPARENT = frozenset(
    {
        "pcp.stop_gradient",
        "stablehlo.broadcast_in_dim",
        "stablehlo.reshape",
        "stablehlo.transpose",
    }
)

#: Ops that make whole numbers of whole numbers: the operands that matter.
_WHOLE = {
    **dict.fromkeys(_TRANSPARENT, slice(1)),
    "stablehlo.convert": slice(1),
    "stablehlo.subtract": slice(2),
    "stablehlo.select": slice(1, 3),
}


def scale(x: Value, factor: float) -> Value:
    """`factor · x`."""
    return hlo.multiply(x, hlo.constant_like(x, factor))


def wide(element: ir.Type) -> ir.Type:
    """The element type to sum in: f32 for narrower floats, else the same."""
    if isinstance(element, ir.FloatType) and ir.FloatType(element).width < 32:
        return ir.F32Type.get()
    return element


def sum_over(x: Value, dimensions: Sequence[int]) -> Value:
    """Σ over `dimensions`, rounded once."""
    element = hlo.element_type(x)
    total = hlo.reduce_sum(hlo.convert(x, wide(element)), list(dimensions))
    return hlo.convert(total, element)


def sum_all(x: Value) -> Value:
    """Σ over everything, a rank-0 tensor, rounded once."""
    return sum_over(x, range(len(hlo.shape_of(x))))


def splat_of(x: Value) -> float | int | None:
    """The number at every position of a real constant, or None if not known."""
    while isinstance(x.owner, ir.Operation | ir.OpView):
        op = x.owner
        if op.name in _TRANSPARENT:
            x = op.operands[0]
        elif op.name == "stablehlo.convert" and _is_wide(op):
            x = op.operands[0]
        elif op.name in ("stablehlo.constant", "arith.constant"):
            # The bindings have no class for an attribute of complex numbers.
            complex_ = hlo.is_complex(hlo.element_type(x))
            return None if complex_ else _number(op.attributes["value"])
        else:
            return None
    return None


def was_integer(x: Value) -> bool:
    """Whether a floating-point value is whole by its making: converted from integers.

    A constant that is whole counts, and differences and choices of such values.
    """
    if not hlo.is_differentiable(x):
        return True
    if (number := splat_of(x)) is not None:
        return float(number).is_integer()
    op = x.owner
    if not isinstance(op, ir.Operation | ir.OpView):
        return False
    made_of = _WHOLE.get(op.name)
    return made_of is not None and all(was_integer(v) for v in op.operands[made_of])


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
