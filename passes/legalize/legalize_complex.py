"""Complex tensors that IREE's compiler ends in a segmentation fault on.

A convolution becomes real ones; a constant of 64-bit parts is put together from two.
"""

from collections.abc import Callable, Sequence

from pcp.dialect import function_body, hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core.rewriting import attributes, defining

Value = ir.Value
Values = Sequence[Value]


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


def constant(op: ir.Operation) -> Values | None:
    """complex(re, im), or None for real numbers.

    IREE has no word for 64-bit parts, does not compile an update of a constant of
    32-bit ones, and loses its way among what it computes of the two parts at compile
    time ("global source initialization order invalid").
    """
    element = hlo.element_type(op.result)
    if not hlo.is_complex(element):
        return None
    part = ir.ComplexType(element).element_type
    if not hlo.size(op.result):
        return None
    type_ = hlo.like(op.result, element=part)
    parts = (
        hlo.op("constant", [], [type_], value=_evaluated(op, build)).result
        for build in (hlo.real, hlo.imag)
    )
    return [hlo.complex_(*parts)]


def real(op: ir.Operation) -> Values | None:
    """The real part that a complex number was made of; None of others."""
    return _part_of(op, 0)


def imag(op: ir.Operation) -> Values | None:
    """The imaginary part that a complex number was made of; None of others."""
    return _part_of(op, 1)


def _part_of(op: ir.Operation, which: int) -> Values | None:
    made = defining(op.operands[0], "complex")
    return None if made is None else [made.operands[which]]


def _evaluated(op: ir.Operation, build: Callable[[Value], Value]) -> ir.Attribute:
    """What `build` gives on a constant: the bindings cannot read complex numbers."""
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        function, block = function_body.begin(function_body.named("main"), [])
    with ir.InsertionPoint(block):
        value = build(op.clone().results[0])
    function_body.finish(function, [value])
    (found,) = stablehlo.eval_module(module, [])
    return found
