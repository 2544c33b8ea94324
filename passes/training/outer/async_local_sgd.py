"""Asynchronous local SGD with delayed Nesterov momentum (arXiv 2401.09135).

Learners have clocks of their own. What one went from the parameters it began with is
pushed when it is done, and applied to the newest parameters as it comes:

    g = θ_begin - θ_m          θ <- θ - ε g / N          B <- B + g

and at every N-th push, with N = `period`, also

    b <- β b + B / N           θ <- θ - ε β b            B <- 0

so that N pushes together are one Nesterov step along their mean, while momentum, which
harms where deltas are late, moves once for them all. N = 1 is Nesterov at each push.
Pushes that come as one (within a grace period) count as so many: g is their sum, and
the period ends with the first push or group that fills it, over as many as there were.

The members of the exchange are those who push, one as a rule; the newest parameters
and the outer state are the anchors and slots that they are given.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.outer.diloco import MOMENTUM, less, moved
from pcp.passes.training.outer.parts.group import in_buckets, sum_over_workers
from pcp.passes.training.outer.parts.replicas import counter
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Slot, Tensors, Values
from pcp.passes.training.outer.spec import AsyncLocalSGD
from pcp.training_plan import Asynchronous

Value = ir.Value
BUFFER, PUSHES = "buffer", "pushes"


def slots(spec: AsyncLocalSGD) -> Sequence[Slot]:
    """b, B, and how many pushes are in B, where there is momentum."""
    if not spec.momentum:
        return ()
    return (Slot(MOMENTUM), Slot(BUFFER), Slot(PUSHES, whole=counter))


def step(spec: AsyncLocalSGD, now: OuterRound) -> tuple[list[Value], Tensors]:
    """The newest parameters and slots with these pushes in them."""
    pushed = in_buckets(moved(now))
    directions = [scale(g, 1 / spec.period) for g in pushed]
    state: Tensors = {}
    if spec.momentum:
        directions, state = _delayed(spec, now.state, pushed, directions)
    pairs = zip(now.anchors, directions, strict=True)
    return [less(anchor, scale(d, spec.lr)) for anchor, d in pairs], state


def _delayed(
    spec: AsyncLocalSGD, state: Tensors, pushed: Values, plain: Values
) -> tuple[list[Value], Tensors]:
    """The directions with the momentum in them, if its time has come; the slots."""
    (before,) = state[PUSHES]
    count = hlo.add(before, sum_over_workers(hlo.constant(1, before.type)))
    full = hlo.constant_like(count, spec.period)
    due = hlo.compare("GE", count, full, "SIGNED")
    buffers, momenta, directions = [], [], []
    slots_ = zip(state[MOMENTUM], state[BUFFER], pushed, plain, strict=True)
    for momentum, buffer, g, direction in slots_:
        gathered = hlo.add(buffer, g)
        divisor = hlo.convert(count, hlo.element_type(g))
        mean = hlo.divide(gathered, hlo.splat(divisor, hlo.shape_of(g)))
        moved_on = hlo.add(scale(momentum, spec.momentum), mean)
        ahead = hlo.add(direction, scale(moved_on, spec.momentum))
        directions.append(hlo.select(due, ahead, direction))
        momenta.append(hlo.select(due, moved_on, momentum))
        buffers.append(hlo.select(due, hlo.zeros(gathered.type), gathered))
    left = hlo.select(due, hlo.zeros(count.type), count)
    return directions, {MOMENTUM: momenta, BUFFER: buffers, PUSHES: [left]}


def plan(spec: AsyncLocalSGD) -> Asynchronous:
    """Learners on their own clocks."""
    return Asynchronous(dynamic_steps=spec.dylu)


RULE = OuterRule(plan, step=step, state=slots)
