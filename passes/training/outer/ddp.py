"""Data parallelism: every step applies g = Σ_m t_m g_m / Σ_m t_m."""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.outer.parts.group import weighted_mean
from pcp.passes.training.outer.rule import OuterRule, Tensors, Values
from pcp.passes.training.outer.spec import DDP
from pcp.training_plan import EveryStep


def every_step(
    spec: DDP, gradients: Values, state: Tensors, tokens: ir.Value
) -> tuple[list[ir.Value], Tensors]:
    """The mean of the workers' gradients, in the gradients' own types."""
    means = weighted_mean(gradients, tokens)
    pairs = zip(means, gradients, strict=True)
    return [hlo.convert(mean, hlo.element_type(g)) for mean, g in pairs], {}


RULE = OuterRule(lambda spec: EveryStep(), every_step=every_step, shards=True)
