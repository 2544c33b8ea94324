"""Complex tensors at whose edges IREE's compiler ends in a segmentation fault.

It pads with a fill that knows no complex numbers. So real and imaginary parts are
padded apart; a convolution becomes real ones, and the padding of a reduce_window
becomes a pad of its own.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core.rewriting import attributes, ints

Value = ir.Value
Values = Sequence[Value]


def pad(op: ir.Operation) -> Values | None:
    """Each part padded, or None for real numbers."""
    x, fill = op.operands
    if not hlo.is_complex(hlo.element_type(x)):
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
    """`hlo.pad`, part by part where the numbers are complex."""
    if not hlo.is_complex(hlo.element_type(x)):
        return hlo.pad(x, fill, low, high, interior)
    parts = (
        hlo.pad(part(x), part(fill), low, high, interior)
        for part in (hlo.real, hlo.imag)
    )
    return hlo.complex_(*parts)


def convolution(op: ir.Operation) -> Values | None:
    """(a + bi)(c + di) = (ac − bd) + (ad + bc)i, each product a convolution."""
    x, kernel = op.operands
    if not hlo.is_complex(hlo.element_type(op.result)):
        return None
    element = ir.ComplexType(hlo.element_type(op.result)).element_type
    result = hlo.like(op.result, element=element)

    def product(left: Value, right: Value) -> Value:
        return hlo.op("convolution", [left, right], [result], **attributes(op)).result

    a, b, c, d = hlo.real(x), hlo.imag(x), hlo.real(kernel), hlo.imag(kernel)
    real = hlo.subtract(product(a, c), product(b, d))
    return [hlo.complex_(real, hlo.add(product(a, d), product(b, c)))]


def reduce_window(op: ir.Operation) -> Values | None:
    """The same windows over operands that are padded beforehand."""
    count = len(op.operands) // 2
    padding = _edges(op)
    elements = [hlo.element_type(x) for x in op.operands]
    if not any(map(hlo.is_complex, elements)) or not padding.any():
        return None
    low, high = padding[:, 0].tolist(), padding[:, 1].tolist()
    interior = [d - 1 for d in ints(op, "base_dilations") or [1] * len(low)]
    for i in range(count):
        x, fill = op.operands[i], op.operands[count + i]
        op.operands[i] = pad_any(x, fill, low, high, interior)
    for name in ("padding", "base_dilations"):
        if name in op.attributes:
            del op.attributes[name]
    return None


def _edges(op: ir.Operation) -> np.ndarray:
    """`[rank, 2]`, zeros when the op says nothing."""
    rank = len(hlo.shape_of(op.operands[0]))
    if (found := hlo.attribute(op, "padding")) is None:
        return np.zeros((rank, 2), int)
    return np.array(ir.DenseIntElementsAttr(found)).reshape(rank, 2)


def constant(op: ir.Operation) -> Values | None:
    """complex(re, im) for a constant of 64-bit parts, for which IREE has no word."""
    element = hlo.element_type(op.result)
    if not hlo.is_complex(element):
        return None
    part = ir.ComplexType(element).element_type
    if not isinstance(part, ir.F64Type) or not hlo.size(op.result):
        return None
    type_ = hlo.like(op.result, element=part)
    parts = (
        hlo.op("constant", [], [type_], value=_evaluated(op, build)).result
        for build in (hlo.real, hlo.imag)
    )
    return [hlo.complex_(*parts)]


def _evaluated(op: ir.Operation, build: Callable[[Value], Value]) -> ir.Attribute:
    """What `build` gives on a constant: the bindings cannot read complex numbers."""
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        type_ = ir.FunctionType.get([], [])
        function = ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": ir.StringAttr.get("main"),
                "function_type": ir.TypeAttr.get(type_),
            },
            regions=1,
        )
    block = function.regions[0].blocks.append()
    with ir.InsertionPoint(block):
        value = build(op.clone().results[0])
        ir.Operation.create("func.return", operands=[value])
    result = ir.FunctionType.get([], [value.type])
    function.attributes["function_type"] = ir.TypeAttr.get(result)
    (found,) = stablehlo.eval_module(module, [])
    return found
