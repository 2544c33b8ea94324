"""Lion (arXiv 2302.06675): the sign of an interpolated momentum.

u = sign(β1 m + (1-β1) g)       m <- β2 m + (1-β2) g       p <- (1 - η λ) p - η u
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.optimizers.rule import Clock, OptimizerRule, clipped, shrunk
from pcp.passes.training.optimizers.spec import Lion

Value = ir.Value


def update(spec: Lion, clock: Clock, p: Value, g: Value, m: Value) -> tuple[Value, ...]:
    """New parameter and momentum."""
    g = clipped(clock, g)
    mixed = hlo.add(scale(m, spec.beta1), scale(g, 1 - spec.beta1))
    m = hlo.add(scale(m, spec.beta2), scale(g, 1 - spec.beta2))
    kept = shrunk(spec, clock, p)
    return hlo.subtract(kept, scale(hlo.sign(mixed), clock.lr)), m


RULE = OptimizerRule(slots=lambda spec: ("m",), update=update)
