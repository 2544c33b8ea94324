"""The batch_norm ops as arithmetic, by the formulas of the StableHLO specification."""

from collections.abc import Sequence
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import integer

Values = Sequence[ir.Value]


class _Features:
    """Shapes of a batch norm: features along one dim, statistics over the rest."""

    def __init__(self, op: ir.Operation) -> None:
        self.shape = hlo.shape_of(op.operands[0])
        self.dimension = integer(op, "feature_index")
        self.others = [d for d in range(len(self.shape)) if d != self.dimension]
        self.count = prod(self.shape[d] for d in self.others)
        self.epsilon = ir.FloatAttr(op.attributes["epsilon"]).value

    def spread(self, x: ir.Value) -> ir.Value:
        """A value per feature at every position."""
        return hlo.broadcast_in_dim(x, self.shape, [self.dimension])

    def total(self, x: ir.Value) -> ir.Value:
        """Σ of a feature."""
        return hlo.reduce_sum(x, self.others)

    def mean(self, x: ir.Value) -> ir.Value:
        """Σ/N of a feature."""
        total = self.total(x)
        return hlo.divide(total, hlo.constant_like(total, self.count))

    def deviation(self, variance: ir.Value) -> ir.Value:
        """√(σ² + ε)."""
        return hlo.sqrt(hlo.add(variance, hlo.constant_like(variance, self.epsilon)))


def inference(op: ir.Operation) -> Values:
    """`(x - μ) / √(σ² + ε) · γ + β`."""
    x, scale, offset, mean, variance = op.operands
    return [_normalize(_Features(op), x, scale, offset, mean, variance)]


def training(op: ir.Operation) -> Values:
    """The same with the statistics of the batch, which are results too."""
    x, scale, offset = op.operands
    features = _Features(op)
    mean = features.mean(x)
    centered = hlo.subtract(x, features.spread(mean))
    variance = features.mean(hlo.multiply(centered, centered))
    return [_normalize(features, x, scale, offset, mean, variance), mean, variance]


def _normalize(
    features: _Features,
    x: ir.Value,
    scale: ir.Value,
    offset: ir.Value,
    mean: ir.Value,
    variance: ir.Value,
) -> ir.Value:
    centered = hlo.subtract(x, features.spread(mean))
    unit = hlo.divide(centered, features.spread(features.deviation(variance)))
    scaled = hlo.multiply(unit, features.spread(scale))
    return hlo.add(scaled, features.spread(offset))


def gradient(op: ir.Operation) -> Values:
    """Cotangents of x, γ and β, for statistics of the batch."""
    x, scale, mean, variance, g = op.operands
    f = _Features(op)
    centered = hlo.subtract(x, f.spread(mean))
    deviation = f.deviation(variance)
    product = hlo.multiply(g, centered)
    shift = f.total(g)
    tilt = hlo.divide(f.total(product), hlo.multiply(deviation, deviation))
    scaled = hlo.multiply(g, hlo.constant_like(g, f.count))
    inner = hlo.subtract(
        hlo.subtract(scaled, f.spread(shift)), hlo.multiply(f.spread(tilt), centered)
    )
    factor = hlo.divide(hlo.divide(scale, deviation), hlo.constant_like(scale, f.count))
    gradient_x = hlo.multiply(f.spread(factor), inner)
    gradient_scale = f.total(hlo.divide(product, f.spread(deviation)))
    return [gradient_x, gradient_scale, shift]
