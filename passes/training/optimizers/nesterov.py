"""Nesterov's momentum in the form of torch.optim.SGD(nesterov=True).

g <- g + λ p          b <- μ b + g          p <- p - η (g + μ b)
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.optimizers.rule import Clock, OptimizerRule
from pcp.passes.training.optimizers.sgd import regular
from pcp.passes.training.optimizers.spec import Nesterov

Value = ir.Value


def update(
    spec: Nesterov, clock: Clock, p: Value, g: Value, buffer: Value
) -> tuple[Value, ...]:
    """New parameter and momentum buffer."""
    g = regular(spec, clock, p, g)
    buffer = hlo.add(scale(buffer, spec.momentum), g)
    ahead = hlo.add(g, scale(buffer, spec.momentum))
    return hlo.subtract(p, scale(ahead, clock.lr)), buffer


RULE = OptimizerRule(slots=lambda spec: ("momentum",), update=update)
