"""Streaming DiLoCo (arXiv 2501.18512): DiLoCo by fragments, beside the inner steps.

For fragment p, once a round, at its own inner step s_p; τ steps later the sum is back:

    at s_p        Δ = θ - θ_m                     θ: what all had after the last time
    meanwhile     Δ̄ = Σ_m t_m Δ_m / Σ_m t_m       the inner steps go on
    at s_p + τ    b <- β b + Δ̄      θ <- θ - γ (Δ̄ + β b)
                  θ_m <- α θ_m + (1 - α) θ

θ and b are alike on all workers, θ_m is each one's own, between rounds too. When s_p
is, the runtime knows (`pcp.training.trainer.fragment_schedule`); here are the three
lines.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale, widen
from pcp.passes.training.outer.diloco import descend, moved, slots
from pcp.passes.training.outer.parts import fragments
from pcp.passes.training.outer.parts.group import weighted_mean
from pcp.passes.training.outer.rule import (
    OuterRound,
    OuterRule,
    Pieces,
    Tensors,
    Values,
)
from pcp.passes.training.outer.spec import StreamingDiLoCo
from pcp.training_plan import Fragments

Value = ir.Value


def split(
    spec: StreamingDiLoCo, names: Sequence[str], sizes: Sequence[int]
) -> list[list[int]]:
    """The parameters of each fragment."""
    return fragments.assign(names, sizes, spec.fragments)


def send(spec: StreamingDiLoCo, now: OuterRound) -> list[Value]:
    """Δ, of tensors of its own: the inner steps may write over θ_m."""
    return moved(now)


def exchange(spec: StreamingDiLoCo, deltas: Values, tokens: Value) -> list[Value]:
    """Δ̄, in the wire's code."""
    return weighted_mean(deltas, tokens, None if spec.wire == "f32" else spec.wire)


def apply(
    spec: StreamingDiLoCo, now: OuterRound, means: Values
) -> tuple[list[Value], list[Value], Tensors]:
    """New θ, θ_m, and b."""
    new, state = descend(spec, now, means)
    if spec.alpha == 0:
        return new, new, state
    mixed = [_mix(spec.alpha, m, t) for m, t in zip(now.locals, new, strict=True)]
    return new, mixed, state


def _mix(alpha: float, own: Value, common: Value) -> Value:
    if alpha == 1:
        return own
    both = hlo.add(scale(widen(own), alpha), scale(widen(common), 1 - alpha))
    return hlo.convert(both, hlo.element_type(own))


def plan(spec: StreamingDiLoCo) -> Fragments:
    """Fragments, each at its own time."""
    return Fragments(count=spec.fragments, delay=spec.tau, together=spec.together)


RULE = OuterRule(plan, state=slots, pieces=Pieces(split, send, exchange, apply))
