"""MeZO (arXiv 2305.17333): training with forward passes alone.

s = (L(θ + ε z) - L(θ - ε z)) / 2ε        g = s z

The gradient's estimate goes to the inner optimizer; the paper's is `sgd`. It is for
fine-tuning with a small learning rate: its variance grows with the parameters.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.outer.parts.probes import plan
from pcp.passes.training.outer.parts.replicas import STEPS
from pcp.passes.training.outer.rule import OuterRule, ProbedModel, Values
from pcp.passes.training.outer.spec import MeZO

Value = ir.Value


def probe(
    spec: MeZO, model: ProbedModel, params: Values, direction: Values
) -> tuple[Value, Value]:
    """The mean of the two losses, and their slope."""
    pairs = list(zip(params, direction, strict=True))
    above = model.loss([hlo.add(p, scale(z, spec.eps)) for p, z in pairs])
    below = model.loss([hlo.subtract(p, scale(z, spec.eps)) for p, z in pairs])
    slope = scale(hlo.subtract(above, below), 0.5 / spec.eps)
    return scale(hlo.add(above, below), 0.5), slope


RULE = OuterRule(plan, probe=probe, differences=True, state=lambda spec: (STEPS,))
