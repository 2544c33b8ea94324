"""Constants as numpy arrays, both ways, and the values that ops give on them.

A constant is a `stablehlo.constant` (or `arith.constant`) of integers, booleans
or floats. bfloat16 and the 8-bit floats are known when they are splats; complex
constants are left alone: the bindings cannot read them.
"""

from math import prod

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import defining

CONSTANTS = ("stablehlo.constant", "arith.constant")


def elements(value: ir.Value) -> ir.DenseElementsAttr | None:
    """The attribute behind a constant tensor, or None."""
    op = defining(value)
    if op is None or op.name not in CONSTANTS:
        return None
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    if hlo.is_complex(value.type.element_type):
        return None
    attribute = op.attributes["value"]
    return attribute if isinstance(attribute, ir.DenseElementsAttr) else None


def splat(value: ir.Value) -> float | int | bool | None:
    """The one number that `value` holds everywhere, or None.

    Sees through broadcasts, reshapes and transposes of constants.
    """
    for _ in range(8):
        attribute = elements(value)
        if attribute is not None:
            return _splat_of(attribute)
        op = defining(value)
        if op is None or op.name not in _MOVEMENT:
            return None
        value = op.operands[0]
    return None


_MOVEMENT = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose")


def _splat_of(attribute: ir.DenseElementsAttr) -> float | int | bool | None:
    if not attribute.is_splat:
        return None
    return attribute.get_splat_value().value


def array(value: ir.Value, limit: int | None = None) -> np.ndarray | None:
    """The elements of a constant of at most `limit` elements, or None."""
    attribute = elements(value)
    if attribute is None or dtype_of(value.type.element_type) is None:
        return None
    shape = hlo.shape_of(value)
    if limit is not None and prod(shape) > limit:
        return None
    return np.array(attribute).reshape(shape)


DTYPES: dict[str, type] = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui8": np.uint8,
    "ui16": np.uint16,
    "ui32": np.uint32,
    "ui64": np.uint64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}


def dtype_of(element: ir.Type) -> np.dtype | None:
    """numpy's type of an element type, or None when it has none."""
    found = DTYPES.get(str(element))
    return None if found is None else np.dtype(found)


def make(values: np.ndarray, type_: ir.Type) -> ir.Value:
    """A constant of `type_` (of one of `DTYPES`) that holds `values`."""
    ranked = hlo.tensor_type(type_)
    shape = tuple(ranked.shape)
    dtype = dtype_of(ranked.element_type)
    values = np.ascontiguousarray(values, dtype).reshape(shape)
    if values.size and _all_equal(values):
        return hlo.constant(values.flat[0].item(), ranked)
    attribute = ir.DenseElementsAttr.get(
        values, type=ranked.element_type, shape=list(shape)
    )
    return hlo.op("constant", [], [ranked], value=attribute).result


def _all_equal(values: np.ndarray) -> bool:
    """Whether one bit pattern fills it; NaN and -0.0 count as what they are."""
    raw = values.reshape(-1, 1).view(np.uint8)
    return bool((raw == raw[0]).all())
