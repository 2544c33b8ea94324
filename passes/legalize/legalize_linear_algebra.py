"""cholesky and triangular_solve, for which IREE has no kernels, as blocked loops.

All forms come down to two: the factor of a lower triangle and the solution of
`L x = b`, on `[batch, n, n]`. An upper triangle is a lower one read backwards:
reversing its rows and columns makes it so. Floats narrower than 32 bits are
computed in f32.
"""

from collections.abc import Sequence
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.legalize import legalize_blocks as blocks

Values = Sequence[ir.Value]


def cholesky(op: ir.Operation) -> Values:
    """The factor, with zeros in the other triangle; NaN if there is none."""
    (a,) = op.operands
    shape, element = hlo.shape_of(a), hlo.element_type(a)
    if 0 in shape:
        return [a]
    lower = _flag(op, "lower")
    matrix = _batched(_wide(a))
    factor = blocks.factor(matrix if lower else blocks.adjoint(matrix))
    factor = factor if lower else blocks.adjoint(factor)
    return [hlo.convert(hlo.reshape(factor, shape), element)]


def triangular_solve(op: ir.Operation) -> Values:
    """x of `op(a) x = b` or `x op(a) = b`; a zero pivot gives infinities or NaN."""
    a, b = op.operands
    shape, element = hlo.shape_of(b), hlo.element_type(b)
    if 0 in shape:
        return [b]
    matrix, rhs = _batched(_wide(a)), _batched(_wide(b))
    how = stablehlo.TransposeAttr(op.attributes["transpose_a"]).value
    left, lower = _flag(op, "left_side"), _flag(op, "lower")
    if how == "ADJOINT" and hlo.is_complex(hlo.element_type(matrix)):
        matrix = hlo.conj(matrix)
    rhs = rhs if left else blocks.transposed(rhs)
    if (how == "NO_TRANSPOSE") is not left:
        matrix, lower = blocks.transposed(matrix), not lower
    if not lower:
        matrix, rhs = hlo.reverse(matrix, [1, 2]), hlo.reverse(rhs, [1])
    x = blocks.substitute(matrix, rhs, unit=_flag(op, "unit_diagonal"))
    x = x if lower else hlo.reverse(x, [1])
    x = x if left else blocks.transposed(x)
    return [hlo.convert(hlo.reshape(x, shape), element)]


def _flag(op: ir.Operation, name: str) -> bool:
    found = hlo.attribute(op, name)
    return found is not None and ir.BoolAttr(found).value


def _batched(x: ir.Value) -> ir.Value:
    """`[batch..., n, m]` as `[batch, n, m]`."""
    *batch, n, m = hlo.shape_of(x)
    return hlo.reshape(x, [prod(batch), n, m])


def _wide(x: ir.Value) -> ir.Value:
    element = hlo.element_type(x)
    narrow = hlo.is_float(element) and ir.FloatType(element).width < 32
    return hlo.convert(x, ir.F32Type.get()) if narrow else x
