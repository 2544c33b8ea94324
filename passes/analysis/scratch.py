"""Memory that an op takes beside its results: operands that are written out for it.

IREE pads what a window slides over, in a buffer of its own: a convolution's left
operand, with the zeros that its dilation puts in between, and what `reduce_window`
reads.
"""

from collections.abc import Sequence
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Convolution, Window, dilated
from pcp.passes.analysis.cost import size_bytes


def scratch_bytes(op: ir.Operation) -> int:
    """Bytes of an op's padded operands; 0 for one that pads nothing."""
    if op.name == "stablehlo.convolution":
        how = Convolution.of(op)
        over = zip(how.dims.input[2], how.padding, how.lhs_dilation, strict=True)
        return _padded(op.operands[0], list(over))
    if op.name == "stablehlo.reduce_window":
        window = Window.of(op)
        steps = zip(window.padding, window.base_dilations, strict=True)
        over = [(dim, *step) for dim, step in enumerate(steps)]
        return sum(_padded(x, over) for x in op.operands[: len(op.operands) // 2])
    return 0


def _padded(x: ir.Value, over: Sequence[tuple[int, tuple[int, int], int]]) -> int:
    """Bytes behind the padding and dilation of dims, if that changes anything."""
    before = hlo.shape_of(x)
    shape = list(before)
    for dim, padding, dilation in over:
        shape[dim] = dilated(shape[dim], dilation) + sum(padding)
    if shape == list(before):
        return 0
    return size_bytes(x) // max(1, prod(before)) * prod(shape)
