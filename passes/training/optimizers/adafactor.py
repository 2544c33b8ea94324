"""Adafactor (arXiv 1804.04235), with torch.optim.Adafactor's order of operations.

At step k, with ω = k^-0.8 and ρ = min(η, 1/√k), of a matrix

    r <- r + ω (mean of g² along each row - r)          c, along each column, likewise
    v = r cᵀ / max(mean r, ε1)

(of a vector v <- v + ω (g² - v)), then

    u = g / √max(v, ε1²)
    p <- (1 - η λ) p - max(ε2, RMS(p)) ρ u / max(1, RMS(u)/d)

with ε1 = 2^-23, d = 1. The state of a matrix is a row and a column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import like, scale
from pcp.passes.training.optimizers.rule import Clock, OptimizerRule, clipped, shrunk
from pcp.passes.training.optimizers.spec import Adafactor

Value = ir.Value
EPSILON = 2.0**-23


@dataclass(frozen=True)
class AdafactorScalars:
    """What all parameters of a step share."""

    clock: Clock
    fresh: Value  # ω
    rate: Value  # ρ


def before(spec: Adafactor, clock: Clock) -> AdafactorScalars:
    """ω and ρ of this step."""
    exponent = hlo.constant_like(clock.step, spec.beta2_decay)
    rate = hlo.minimum(clock.lr, hlo.rsqrt(clock.step))
    return AdafactorScalars(clock, hlo.power(clock.step, exponent), rate)


def state(spec: Adafactor, type_: ir.Type) -> Sequence[tuple[str, ir.Type]]:
    """Row and column means of a matrix, or the mean of a vector's squares."""
    shape, element = hlo.shape_of(type_), hlo.element_type(type_)
    if len(shape) < 2:
        return [("v", type_)]
    column = (*shape[:-2], shape[-1])
    return [
        ("row", hlo.tensor(shape[:-1], element)),
        ("col", hlo.tensor(column, element)),
    ]


def update(
    spec: Adafactor, now: AdafactorScalars, p: Value, g: Value, *kept: Value
) -> tuple[Value, ...]:
    """New parameter and means."""
    g = clipped(now.clock, g)
    square = hlo.multiply(g, g)
    rank = len(hlo.shape_of(p))
    found = [square] if rank < 2 else [_mean(square, rank - 1), _mean(square, rank - 2)]
    kept = tuple(_towards(now, k, f) for k, f in zip(kept, found, strict=True))
    v = kept[0] if rank < 2 else _product(*kept)
    u = hlo.multiply(g, hlo.rsqrt(hlo.maximum(v, like(EPSILON**2, v))))
    size = _root_mean_square(p)
    size = hlo.maximum(size, hlo.constant_like(size, spec.eps))
    excess = scale(_root_mean_square(u), 1 / spec.d)
    excess = hlo.maximum(excess, hlo.constant_like(excess, 1.0))
    step = hlo.divide(hlo.multiply(size, now.rate), excess)
    return hlo.subtract(shrunk(spec, now.clock, p), scale(u, step)), *kept


def _towards(now: AdafactorScalars, old: Value, new: Value) -> Value:
    return hlo.add(old, scale(hlo.subtract(new, old), now.fresh))


def _mean(x: Value, dimension: int) -> Value:
    total = hlo.reduce_sum(x, [dimension])
    return scale(total, 1 / hlo.shape_of(x)[dimension])


def _product(row: Value, column: Value) -> Value:
    """r cᵀ / max(mean r, ε1), for each matrix where there are several."""
    lead = len(hlo.shape_of(row)) - 1
    shape = (*hlo.shape_of(row), hlo.shape_of(column)[-1])
    middle = _mean(row, lead)
    middle = hlo.maximum(middle, like(EPSILON, middle))
    wide = hlo.broadcast_in_dim(middle, hlo.shape_of(row), range(lead))
    row = hlo.divide(row, wide)
    return hlo.multiply(
        hlo.broadcast_in_dim(row, shape, range(lead + 1)),
        hlo.broadcast_in_dim(column, shape, [*range(lead), lead + 1]),
    )


def _root_mean_square(x: Value) -> Value:
    norm = hlo.sqrt(hlo.sum_all(hlo.multiply(x, x)))
    return scale(norm, 1 / sqrt(max(1, hlo.size(x))))


RULE = OptimizerRule(slots=lambda spec: (), state=state, update=update, before=before)
