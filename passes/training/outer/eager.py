"""DiLoCo with eager updates (arXiv 2502.12996): own progress now, the others' late.

At the end of round t, with Δ^t_m = θ_m - θ_m(end), where M workers have equal tokens:

    Δ = mean_j Δ^(t-1)_j + (Δ^t_m - Δ^(t-1)_m) / M
    b_m <- β b_m + Δ        θ_m <- θ_m - γ (Δ + β b_m)

The mean is of the last round's deltas and is exchanged while the steps of this round
are made. So θ_m and b_m are each worker's own, and differ by what is in flight: for
β = 0, θ_m - θ_n = -(γ / M) (Δ^t_m - Δ^t_n).

Where the inner steps nearly reach the bottom, Δ = θ_m / M + θ'_m (M - 1) / M of the
rounds t and t - 1, and the largest eigenvalue of the three lines says what is stable:
for γ = 0.7 and β = 0.9 it is 0.97 with 2 workers, 1.14 with 4 and 1.27 with 32; for
γ = 0.4 and β = 0.6, the defaults, it stays below 0.98.

In flight are a worker's own delta and its tokens, as in `async_diloco`. A newcomer
has a replica of somebody's parameters, and nothing in flight.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.outer.async_diloco import DELTA, WEIGHT
from pcp.passes.training.outer.diloco import MOMENTUM, descend, moved
from pcp.passes.training.outer.parts.group import in_buckets, sum_over_workers
from pcp.passes.training.outer.parts.replicas import ROUNDS, counted
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Slot, Tensors
from pcp.passes.training.outer.spec import Eager
from pcp.training_plan import EveryRound

Value = ir.Value


def slots(spec: Eager) -> Sequence[Slot]:
    """b_m, the delta in flight and the tokens behind it; the number of rounds."""
    own = (Slot(MOMENTUM, private=True),) if spec.momentum else ()
    scalar = Slot(
        WEIGHT, private=True, whole=lambda _: hlo.tensor((), ir.F32Type.get())
    )
    return (*own, Slot(DELTA, private=True), scalar, ROUNDS)


def early(spec: Eager, state: Tensors) -> list[Value]:
    """This worker's share in the mean of the deltas in flight, and that mean."""
    share = _share(*state[WEIGHT])
    return [share, *in_buckets(_scaled(state[DELTA], share))]


def step(spec: Eager, now: OuterRound) -> tuple[list[Value], Tensors]:
    """This worker's parameters with its own progress, and the others' of before."""
    late, *means = now.received
    deltas = moved(now)
    fresh = _scaled(deltas, _share(now.tokens))
    stale = _scaled(now.state[DELTA], late)
    mixed = [
        hlo.add(mean, hlo.subtract(new, old))
        for mean, new, old in zip(means, fresh, stale, strict=True)
    ]
    new, state = descend(spec, now, mixed)
    flying = {DELTA: deltas, WEIGHT: [now.tokens]}
    return new, state | flying | counted(now.state)


def _share(weight: Value) -> Value:
    """t_m / Σ t_m; 0 where nobody has anything."""
    total = sum_over_workers(weight)
    none = hlo.compare("EQ", total, hlo.zeros(total.type), "FLOAT")
    return hlo.divide(weight, hlo.select(none, hlo.constant_like(total, 1.0), total))


def _scaled(tensors: Sequence[Value], share: Value) -> list[Value]:
    return [scale(x, hlo.convert(share, hlo.element_type(x))) for x in tensors]


def plan(spec: Eager) -> EveryRound:
    """Replicas, and exchanges beside the inner steps."""
    return EveryRound(overlap=True, parameters="replica")


RULE = OuterRule(plan, step=step, early=early, state=slots)
