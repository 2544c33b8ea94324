"""Clipping by the gradients' global norm.

g <- g * min(1, c / (|g|_2 + 1e-6)), the norm over all gradients together, as
torch.nn.utils.clip_grad_norm_ has it.
"""

from collections.abc import Sequence
from functools import reduce

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value
SMALLEST = 1e-6


def clip_factor(gradients: Sequence[Value], bound: float) -> Value:
    """The factor for all `gradients`, a rank-0 tensor of the widest type here."""
    wide = any(isinstance(hlo.element_type(g), ir.F64Type) for g in gradients)
    element = ir.F64Type.get() if wide else ir.F32Type.get()
    squares = [_sum_of_squares(hlo.convert(g, element)) for g in gradients]
    norm = hlo.sqrt(reduce(hlo.add, squares))
    floored = hlo.add(norm, hlo.constant_like(norm, SMALLEST))
    ratio = hlo.divide(hlo.constant_like(norm, bound), floored)
    return hlo.minimum(ratio, hlo.constant_like(norm, 1.0))


def _sum_of_squares(x: Value) -> Value:
    """Row by row first: rows are summed in parallel, and with less rounding."""
    rows = hlo.reduce_sum(hlo.multiply(x, x), range(1, len(hlo.shape_of(x))))
    return hlo.sum_all(rows)
