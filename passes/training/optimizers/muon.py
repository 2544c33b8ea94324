"""Muon: a momentum whose singular values are all made about 1 (K. Jordan, 2024).

    b <- μ b + (1-μ) g          u = (1-μ) g + μ b      (without look-ahead: u = b)
    p <- (1 - η λ) p - η √max(1, rows/columns) NS(u)

NS takes X = u / (|u|_F + 1e-7), the shorter side first, and repeats

    A = X Xᵀ          X <- a X + (b A + c A²) X

five times, with (a, b, c) = (3.4445, -4.775, 2.0315): singular values from 0.002 of
the norm upwards come to lie in [0.68, 1.21], those above 0.01 in [0.68, 1.14]; the
singular vectors stay. Of a zero matrix it gives zero.

Tensors of a higher rank count as matrices of their first dimension. Which parameters
are matrices to train so, and that the others get AdamW, is decided in
`pcp.passes.training.optimizers.groups`.
"""

from math import prod, sqrt

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.optimizers.rule import Clock, OptimizerRule, clipped, shrunk
from pcp.passes.training.optimizers.spec import Muon

Value = ir.Value
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SMALLEST = 1e-7


def update(
    spec: Muon, clock: Clock, p: Value, g: Value, buffer: Value
) -> tuple[Value, ...]:
    """New parameter and momentum."""
    g = scale(clipped(clock, g), 1 - spec.momentum)
    buffer = hlo.add(scale(buffer, spec.momentum), g)
    ahead = hlo.add(g, scale(buffer, spec.momentum)) if spec.nesterov else buffer
    shape = hlo.shape_of(p)
    rows, columns = shape[0], prod(shape[1:])
    square = newton_schulz(hlo.reshape(ahead, (rows, columns)), spec.ns_steps)
    move = scale(hlo.reshape(square, shape), sqrt(max(1, rows / columns)))
    return hlo.subtract(shrunk(spec, clock, p), scale(move, clock.lr)), buffer


def newton_schulz(u: Value, steps: int) -> Value:
    """The matrix with the singular vectors of `u` and singular values near 1."""
    rows, columns = hlo.shape_of(u)
    x = hlo.transpose(u, (1, 0)) if rows > columns else u
    norm = hlo.sqrt(hlo.sum_all(hlo.multiply(x, x)))
    floored = hlo.add(norm, hlo.constant_like(norm, SMALLEST))
    x = scale(x, hlo.divide(hlo.constant_like(norm, 1.0), floored))
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = hlo.dot_general(x, x, contract=((1,), (1,)))
        squared = hlo.dot_general(gram, gram, contract=((1,), (0,)))
        mixed = hlo.add(scale(gram, b), scale(squared, c))
        x = hlo.add(scale(x, a), hlo.dot_general(mixed, x, contract=((1,), (0,))))
    return hlo.transpose(x, (1, 0)) if rows > columns else x


RULE = OptimizerRule(slots=lambda spec: ("momentum",), update=update)
