"""NoLoCo (arXiv 2506.10911): gossip in pairs, and no exchange among all.

Every round the workers fall into pairs, drawn anew
(`pcp.runtime.program.gossip_pair`). With φ
a worker's slow parameters, Δ' = θ - φ what its inner steps did, and G its pair:

    δ <- α δ + β mean_G Δ' + γ (mean_G φ - φ)
    φ <- φ + δ           θ <- φ

With an odd number of workers one is a pair by itself. φ and δ are each worker's own;
the mean of φ over all workers follows heavy-ball momentum on the mean of Δ', whatever
the pairs are, and the last term draws the replicas together.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale, widen
from pcp.passes.training.outer.parts.group import PARTNERS, in_buckets, sum_over_workers
from pcp.passes.training.outer.parts.replicas import ROUNDS, counted
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Slot, Tensors
from pcp.passes.training.outer.spec import NoLoCo
from pcp.training_plan import EveryRound

Value = ir.Value
VELOCITY = "velocity"


def slots(spec: NoLoCo) -> Sequence[Slot]:
    """δ, and the number of rounds, from which pairs are drawn."""
    return (Slot(VELOCITY, private=True), ROUNDS)


def step(spec: NoLoCo, now: OuterRound) -> tuple[list[Value], Tensors]:
    """New φ and δ."""
    slow = [widen(x) for x in now.anchors]
    moves = [
        hlo.subtract(widen(own), phi) for own, phi in zip(now.locals, slow, strict=True)
    ]
    part = _one_over_the_members()
    means = [
        scale(x, hlo.convert(part, hlo.element_type(x)))
        for x in in_buckets([*moves, *slow], over=PARTNERS)
    ]
    rows = zip(
        now.state[VELOCITY], means[: len(slow)], means[len(slow) :], slow, strict=True
    )
    velocity = [_velocity(spec, *row) for row in rows]
    new = [
        hlo.convert(hlo.add(phi, d), hlo.element_type(anchor))
        for phi, d, anchor in zip(slow, velocity, now.anchors, strict=True)
    ]
    return new, {VELOCITY: velocity} | counted(now.state)


def _velocity(
    spec: NoLoCo, old: Value, move: Value, middle: Value, own: Value
) -> Value:
    pull = scale(hlo.subtract(middle, own), spec.gamma)
    push = hlo.add(scale(old, spec.alpha), scale(move, spec.beta))
    return hlo.add(push, pull)


def _one_over_the_members() -> Value:
    one = hlo.scalar(1.0, ir.F32Type.get())
    return hlo.divide(one, sum_over_workers(one, over=PARTNERS))


def plan(spec: NoLoCo) -> EveryRound:
    """Replicas that are mixed in pairs."""
    return EveryRound(parameters="gossip", seed=spec.seed)


RULE = OuterRule(plan, step=step, state=slots)
