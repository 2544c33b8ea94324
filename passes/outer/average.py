"""Parameter averaging: θ <- Σ_m t_m θ_m / Σ_m t_m (local SGD, FedAvg).

One worker keeps its parameters bit for bit.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.outer.group import weighted_mean
from pcp.passes.outer.rule import OuterRule, Values
from pcp.passes.outer.spec import Average

Value = ir.Value


def step(
    spec: Average, anchors: Values, locals_: Values, momenta: Values, tokens: Value
) -> tuple[list[Value], list[Value]]:
    """The mean of the workers' parameters; neither anchors nor state are needed."""
    means = weighted_mean(locals_, tokens)
    pairs = zip(means, locals_, strict=True)
    return [hlo.convert(mean, hlo.element_type(own)) for mean, own in pairs], []


RULE = OuterRule(step=step)
