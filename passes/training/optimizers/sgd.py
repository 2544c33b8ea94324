"""Gradient descent with coupled decay and heavy-ball momentum, as torch.optim.SGD.

g <- g + λ p          b <- μ b + g          p <- p - η b
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.optimizers.rule import Clock, OptimizerRule, decays
from pcp.passes.training.optimizers.spec import SGD, Optimizer

Value = ir.Value


def regular(spec: Optimizer, clock: Clock, p: Value, g: Value) -> Value:
    """The clipped gradient, and that of λ/2 |p|²."""
    g = g if clock.clip is None else scale(g, clock.clip)
    return hlo.add(g, scale(p, spec.weight_decay)) if decays(spec, p) else g


def slots(spec: SGD) -> Sequence[str]:
    """The momentum buffer, when there is momentum."""
    return ("momentum",) if spec.momentum else ()


def update(
    spec: SGD, clock: Clock, p: Value, g: Value, *buffers: Value
) -> tuple[Value, ...]:
    """New parameter, and new buffer if there is one."""
    g = regular(spec, clock, p, g)
    buffers = tuple(hlo.add(scale(b, spec.momentum), g) for b in buffers)
    direction = buffers[0] if buffers else g
    return hlo.subtract(p, scale(direction, clock.lr)), *buffers


RULE = OptimizerRule(slots=slots, update=update)
