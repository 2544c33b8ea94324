"""The shape of an update rule.

A rule keeps tensors between steps (zeros before the first), and turns a parameter,
its gradient and these into new ones. Where everything is elementwise, at the same
index, `pcp-verify-inplace` can prove that the old buffers can be written over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.optimizers.schedules import learning_rate
from pcp.passes.training.optimizers.spec import Optimizer

Value = ir.Value


@dataclass(frozen=True)
class Clock:
    """What a rule may know about the step: rank-0 tensors of its element type.

    step: counts from 1. lr: the rate at that step. clip: what gradients are to be
    multiplied by, or None.
    """

    step: Value
    lr: Value
    clip: Value | None = None


@dataclass(frozen=True)
class OptimizerRule:
    """`update(spec, clock, parameter, gradient, *slots)` gives the new tensors.

    The gradient is not clipped yet: where it is used more than once, scaling what is
    made of it keeps the update in one kernel, and scaling it first does not.


    `slots(spec)` names its tensors, all of the parameter's shape; `state(spec, type)`,
    where there is one, gives names and types of its own for a parameter.
    `before(spec, clock)`, when there is one, computes the scalars that all parameters
    share; `update` then gets its result for `clock`.
    """

    slots: Callable[[Any], Sequence[str]]
    update: Callable[..., tuple[Value, ...]]
    before: Callable[[Any, Clock], Any] = lambda spec, clock: clock
    state: Callable[[Any, ir.Type], Sequence[tuple[str, ir.Type]]] | None = None

    def kept(self, spec: Any, type_: ir.Type) -> Sequence[tuple[str, ir.Type]]:
        """Names and types of what is kept for a parameter updated in `type_`."""
        if self.state is not None:
            return self.state(spec, type_)
        return [(name, type_) for name in self.slots(spec)]


def clock(spec: Optimizer, step: Value, element: ir.Type, clip: Value | None) -> Clock:
    """The clock at integer `step`, in `element`."""
    number = hlo.convert(step, element)
    factor = None if clip is None else hlo.convert(clip, element)
    return Clock(number, learning_rate(spec, number), factor)


def clipped(clock: Clock, g: Value) -> Value:
    """The gradient, clipped."""
    return g if clock.clip is None else scale(g, clock.clip)


def shrunk(spec: Optimizer, clock: Clock, p: Value) -> Value:
    """(1 - η λ) p: decay beside the update."""
    if not decays(spec, p):
        return p
    one = hlo.constant_like(clock.lr, 1.0)
    decay = hlo.multiply(clock.lr, hlo.constant_like(clock.lr, spec.weight_decay))
    return scale(p, hlo.subtract(one, decay))


def decays(spec: Optimizer, x: Value) -> bool:
    """Whether weight decay applies to a parameter."""
    return spec.weight_decay > 0 and len(hlo.shape_of(x)) >= spec.decay_min_rank
