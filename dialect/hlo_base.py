"""What StableHLO ops are built of: types, attributes, and the one way to make an op."""

from collections.abc import Sequence
from math import prod

import numpy as np

from pcp.dialect.bindings import ir
from pcp.errors import IRError

Value = ir.Value


# --- types ---


def tensor_type(value: Value | ir.Type) -> ir.RankedTensorType:
    """The ranked, static tensor type of a value, or an error at its location."""
    raw = value if isinstance(value, ir.Type) else value.type
    if not isinstance(raw, ir.RankedTensorType):
        raise IRError(f"expected a ranked tensor, found {raw}")
    if not raw.has_static_shape:
        raise IRError(
            f"{raw} has a dynamic dimension; fold it first with "
            "stablehlo-refine-shapes and stablehlo-canonicalize-dynamism"
        )
    return raw


def shape_of(value: Value | ir.Type) -> tuple[int, ...]:
    """Its dimensions."""
    return tuple(tensor_type(value).shape)


def size(value: Value | ir.Type) -> int:
    """The number of elements."""
    return prod(shape_of(value))


def element_type(value: Value | ir.Type) -> ir.Type:
    """Its element type."""
    return tensor_type(value).element_type


def tensor(shape: Sequence[int], element: ir.Type) -> ir.RankedTensorType:
    """`tensor<shape x element>`."""
    return ir.RankedTensorType.get(list(shape), element)


def like(value: Value | ir.Type, *, element: ir.Type | None = None) -> ir.Type:
    """The same shape with another element type."""
    return tensor(shape_of(value), element or element_type(value))


def is_float(element: ir.Type) -> bool:
    """A floating-point element type of any width."""
    return isinstance(element, ir.FloatType)


def is_complex(element: ir.Type) -> bool:
    """A complex element type."""
    return isinstance(element, ir.ComplexType)


_FINITE = "has neither NaN nor infinity, so an overflow would pass for a number"

#: Floats that hold no cotangent, and why. All others have zero, a sign and a NaN.
NO_COTANGENT: dict[type[ir.Type], str] = {
    ir.Float8E8M0FNUType: "has no zero and no sign",
    ir.Float8E5M3FNUType: "has no sign",
    ir.Float4E2M1FNType: _FINITE,
    ir.Float6E2M3FNType: _FINITE,
    ir.Float6E3M2FNType: _FINITE,
}


def why_no_cotangent(value: Value | ir.Type) -> str | None:
    """Why a tensor of floats holds no cotangent, or None."""
    raw = value if isinstance(value, ir.Type) else value.type
    if not isinstance(raw, ir.RankedTensorType):
        return None
    why = NO_COTANGENT.get(type(raw.element_type))
    return why and f"{raw.element_type} {why}"


def is_differentiable(value: Value | ir.Type) -> bool:
    """Whether a cotangent can live on it: a float or complex tensor.

    Not on the floats of `NO_COTANGENT`.
    """
    raw = value if isinstance(value, ir.Type) else value.type
    if not isinstance(raw, ir.RankedTensorType):
        return False
    element = raw.element_type
    if is_float(element):
        return type(element) not in NO_COTANGENT
    return is_complex(element)


# --- attributes ---


def i64(value: int) -> ir.Attribute:
    """`value : i64`."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def i64s(values: Sequence[int]) -> ir.Attribute:
    """`array<i64: ...>`."""
    return ir.DenseI64ArrayAttr.get(list(map(int, values)))


def i64_matrix(rows: Sequence[Sequence[int]]) -> ir.Attribute:
    """`dense<...> : tensor<Nx2xi64>`, as padding and replica groups are written."""
    array = np.array(rows, np.int64).reshape(len(rows), -1)
    return ir.DenseIntElementsAttr.get(
        array, type=ir.IntegerType.get_signless(64), shape=array.shape
    )


def bools(values: Sequence[bool]) -> ir.Attribute:
    """`array<i1: ...>`."""
    return ir.DenseBoolArrayAttr.get(list(values))


def attribute(op: ir.Operation, name: str) -> ir.Attribute | None:
    """An op's attribute, or None."""
    return op.attributes[name] if name in op.attributes else None


# --- the one way an op is made ---


def op(
    name: str,
    operands: Sequence[Value],
    results: Sequence[ir.Type],
    regions: int = 0,
    **attributes: ir.Attribute | None,
) -> ir.Operation:
    """Create `stablehlo.<name>` (or a qualified name); None attributes are left out."""
    return ir.Operation.create(
        name if "." in name else f"stablehlo.{name}",
        operands=list(operands),
        results=list(results),
        regions=regions,
        attributes={k: v for k, v in attributes.items() if v is not None},
    )
