"""Padding with what IREE's fills do not know: complex numbers, and 64-bit patterns.

Its fill ends in a segmentation fault for complex numbers: real and imaginary parts are
padded apart. A fill whose pattern of 64 bits is not one of 32 bits twice is memory that
all pads with this fill write their operands into ("two pads of -1.5 in f64": each one
holds both operands): such tensors are padded with zeros, and then the fill is chosen
where the operand is not. The padding of a reduce_window with such an initial value
becomes a pad of its own.
"""

from collections.abc import Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import constants
from pcp.passes.core.rewriting import ints
from pcp.passes.core.walk import element_width

Value = ir.Value
Values = Sequence[Value]


def pad(op: ir.Operation) -> Values | None:
    """In a form whose fill is safe; None where it is."""
    x, fill = op.operands
    if not hlo.is_complex(hlo.element_type(x)) and not is_shared_fill(fill):
        return None
    low, high = ints(op, "edge_padding_low"), ints(op, "edge_padding_high")
    return [pad_any(x, fill, low, high, ints(op, "interior_padding"))]


def pad_any(
    x: Value,
    fill: Value,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int],
) -> Value:
    """`hlo.pad`, by parts or by a choice where the fill is not safe."""
    if hlo.is_complex(hlo.element_type(x)):
        parts = (
            pad_any(part(x), part(fill), low, high, interior)
            for part in (hlo.real, hlo.imag)
        )
        return hlo.complex_(*parts)
    if not is_shared_fill(fill):
        return hlo.pad(x, fill, low, high, interior)
    if not any((*low, *high, *interior)):
        return x
    bit = ir.IntegerType.get_signless(1)
    there = hlo.constant_like(hlo.like(x, element=bit), True)
    inside = hlo.pad(there, hlo.scalar(False, bit), low, high, interior)
    zero = hlo.scalar(0, hlo.element_type(x))
    padded = hlo.pad(x, zero, low, high, interior)
    return hlo.select(inside, padded, hlo.splat(fill, hlo.shape_of(padded)))


def is_shared_fill(value: Value) -> bool:
    """Whether IREE keeps one buffer for all tensors that hold this value everywhere.

    It has no fill command for 64 bits, but for those that are 32 bits twice.
    """
    element = hlo.element_type(value)
    if hlo.is_complex(element) or element_width(value) != 8:
        return False
    known = constants.splat(value)
    kind = constants.dtype_of(element)
    if known is None or kind is None:
        return True
    low, high = np.array([known], kind).view(np.uint32)
    return bool(low != high)


def reduce_window(op: ir.Operation) -> None:
    """Operands padded beforehand, in place."""
    count = len(op.operands) // 2
    padding = _edges(op)
    starts = list(op.operands)[count:]
    if not any(map(_is_unsafe, starts)) or not padding.any():
        return
    low, high = padding[:, 0].tolist(), padding[:, 1].tolist()
    interior = [d - 1 for d in ints(op, "base_dilations") or [1] * len(low)]
    for i in range(count):
        x, fill = op.operands[i], op.operands[count + i]
        op.operands[i] = pad_any(x, fill, low, high, interior)
    for name in ("padding", "base_dilations"):
        if name in op.attributes:
            del op.attributes[name]


def _is_unsafe(fill: Value) -> bool:
    return hlo.is_complex(hlo.element_type(fill)) or is_shared_fill(fill)


def _edges(op: ir.Operation) -> np.ndarray:
    """`[rank, 2]`, zeros when the op says nothing."""
    rank = len(hlo.shape_of(op.operands[0]))
    if (found := hlo.attribute(op, "padding")) is None:
        return np.zeros((rank, 2), int)
    return np.array(ir.DenseIntElementsAttr(found)).reshape(rank, 2)
