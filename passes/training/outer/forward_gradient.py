"""Forward gradients (arXiv 2202.08587): a directional derivative in place of a reverse.

s = ∇L(θ) · z        g = s z

By one forward pass with tangents (`pcp-jvp`); E g = ∇L, with a variance that grows
with the number of parameters.
"""

from pcp.dialect.bindings import ir
from pcp.passes.training.outer.parts.probes import plan
from pcp.passes.training.outer.parts.replicas import STEPS
from pcp.passes.training.outer.rule import OuterRule, ProbedModel, Values
from pcp.passes.training.outer.spec import ForwardGradient

Value = ir.Value


def probe(
    spec: ForwardGradient, model: ProbedModel, params: Values, direction: Values
) -> tuple[Value, Value]:
    """The loss, and its derivative along the direction."""
    return model.along(params, direction)


RULE = OuterRule(plan, probe=probe, state=lambda spec: (STEPS,))
