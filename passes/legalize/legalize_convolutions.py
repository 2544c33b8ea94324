"""Convolutions with one place along a dimension, as IREE's compiler takes them."""

from collections.abc import Sequence
from dataclasses import replace

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Convolution, convolution, dilated

Values = Sequence[ir.Value]


def crop(op: ir.Operation) -> Values | None:
    """Without elements that no window covers, where there is one window along a dim.

    IREE drops such a dim, stride and all, and then takes the kernel to be as long as
    the input ("inferred input/output operand #1 has shape's dimension ..."). None where
    no dim has one place and more input than that.
    """
    how = Convolution.of(op)
    x, kernel = op.operands
    padding, strides = list(how.padding), list(how.strides)
    for i, spare in enumerate(_spare(op, how)):
        if spare:
            low, high = padding[i]
            padding[i], strides[i] = (low, high - spare), 1
    if tuple(strides) == how.strides:
        return None
    how = replace(how, strides=tuple(strides), padding=tuple(padding))
    return [convolution(x, kernel, how, hlo.element_type(op.result))]


def _spare(op: ir.Operation, how: Convolution) -> list[int]:
    """Per spatial dim with one place: what lies behind the window, padding included."""
    x, kernel = (hlo.shape_of(v) for v in op.operands)
    found = []
    for i, d in enumerate(how.dims.output[2]):
        extent = dilated(x[how.dims.input[2][i]], how.lhs_dilation[i])
        window = dilated(kernel[how.dims.kernel[2][i]], how.rhs_dilation[i])
        one = hlo.shape_of(op.result)[d] == 1 and how.strides[i] > 1
        found.append(extent + sum(how.padding[i]) - window if one else 0)
    return found
