"""Parameter averaging: θ <- Σ_m t_m θ_m / Σ_m t_m (local SGD, FedAvg).

One worker keeps its parameters bit for bit.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.outer.parts.group import weighted_mean
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Tensors
from pcp.passes.training.outer.spec import Average


def step(spec: Average, now: OuterRound) -> tuple[list[ir.Value], Tensors]:
    """The mean of the workers' parameters; neither anchors nor state are needed."""
    means = weighted_mean(now.locals, now.tokens, over=now.over)
    pairs = zip(means, now.locals, strict=True)
    return [hlo.convert(mean, hlo.element_type(own)) for mean, own in pairs], {}


RULE = OuterRule(step=step, shards=True)
