"""DiLoCo one round late, so that the exchange takes place beside the inner steps.

At the end of round t, with Δ^t_m = θ - θ_m:

    Δ = Σ_m t_m Δ^(t-1)_m / Σ_m t_m     exchanged while the steps of t were made
    b <- β b + Δ        θ <- θ - γ (Δ + β b)        θ_m <- θ

and Δ^t_m is what goes out in round t + 1: what a worker did in a round is seen by
nobody, itself included, for one more. (PCCL's asynchronous DiLoCo; momentum on late
deltas does harm, so that there is none unless asked for.)

In flight are a worker's own delta and its tokens, private state: an exchange that
lost a member is made again with what the others hold. In the first round, and for a
newcomer, that is nothing, of weight 0.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.outer.diloco import descend, moved
from pcp.passes.training.outer.diloco import slots as momentum
from pcp.passes.training.outer.parts.group import in_buckets, sum_over_workers
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Slot, Tensors
from pcp.passes.training.outer.spec import AsyncDiLoCo
from pcp.training_plan import EveryRound

Value = ir.Value
DELTA, WEIGHT = "delta", "weight"


def slots(spec: AsyncDiLoCo) -> Sequence[Slot]:
    """The momentum, this worker's delta in flight, and the tokens behind it."""
    return (
        *momentum(spec),
        Slot(DELTA, private=True),
        Slot(WEIGHT, private=True, whole=lambda _: hlo.tensor((), ir.F32Type.get())),
    )


def early(spec: AsyncDiLoCo, state: Tensors) -> list[Value]:
    """The mean of the deltas in flight; zeros where none is."""
    (weight,) = state[WEIGHT]
    total = sum_over_workers(weight)
    none = hlo.compare("EQ", total, hlo.zeros(total.type), "FLOAT")
    share = hlo.divide(weight, hlo.select(none, hlo.constant_like(total, 1.0), total))
    return in_buckets(
        [scale(x, hlo.convert(share, hlo.element_type(x))) for x in state[DELTA]]
    )


def step(spec: AsyncDiLoCo, now: OuterRound) -> tuple[list[Value], Tensors]:
    """Parameters after the last round's deltas; this round's are in flight."""
    new, state = descend(spec, now, now.received)
    return new, state | {DELTA: moved(now), WEIGHT: [now.tokens]}


def plan(spec: AsyncDiLoCo) -> EveryRound:
    """Exchanges beside the inner steps."""
    return EveryRound(overlap=True)


RULE = OuterRule(plan, step=step, early=early, state=slots, shards=True)
