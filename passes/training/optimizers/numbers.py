"""Scalars and tensors together: what update rules are written in.

Rules compute in `math_type`: float32 for narrower floats, else the type itself.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


def math_type(element: ir.Type) -> ir.Type:
    """The element type in which a tensor of `element` is updated."""
    return element if isinstance(element, ir.F64Type) else ir.F32Type.get()


def widen(x: Value) -> Value:
    """`x` in its math type."""
    return hlo.convert(x, math_type(hlo.element_type(x)))


def scale(x: Value, factor: float | Value) -> Value:
    """`factor * x`, for a number or a rank-0 tensor of x's element type."""
    return hlo.multiply(x, like(factor, x))


def like(number: float | Value, x: Value) -> Value:
    """A number or a rank-0 tensor at every position of x's shape."""
    if isinstance(number, ir.Value):
        return hlo.splat(number, hlo.shape_of(x))
    return hlo.constant_like(x, number)
