"""DiLoCo's outer step (arXiv 2311.08105).

Δ = Σ_m t_m (θ - θ_m) / Σ_m t_m
or, with mean=trimmed, of each number the mean of the middle ones

b <- β b + Δ          θ <- θ - γ (Δ + β b)      (without look-ahead: θ - γ b)
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale, widen
from pcp.passes.training.outer.parts.group import trimmed_mean, weighted_mean
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Slot, Tensors, Values
from pcp.passes.training.outer.spec import DiLoCo, Momentum

Value = ir.Value
MOMENTUM = "momentum"


def slots(spec: Momentum) -> Sequence[Slot]:
    """b, where there is momentum."""
    return (Slot(MOMENTUM),) if spec.momentum else ()


def moved(now: OuterRound) -> list[Value]:
    """θ - θ_m, how far this worker went, in the math type."""
    pairs = zip(now.anchors, now.locals, strict=True)
    return [hlo.subtract(widen(start), widen(own)) for start, own in pairs]


def step(spec: Momentum, now: OuterRound) -> tuple[list[Value], Tensors]:
    """New parameters and momenta."""
    if isinstance(spec, DiLoCo) and spec.mean == "trimmed":
        return descend(spec, now, trimmed_mean(moved(now), now.over))
    return descend(spec, now, weighted_mean(moved(now), now.tokens, over=now.over))


def descend(
    spec: Momentum, now: OuterRound, deltas: Values
) -> tuple[list[Value], dict[str, list[Value]]]:
    """The outer optimizer's step from the anchors against `deltas`."""
    directions, state = list(deltas), {}
    if spec.momentum:
        pairs = zip(now.state[MOMENTUM], deltas, strict=True)
        buffers = [hlo.add(scale(b, spec.momentum), d) for b, d in pairs]
        directions, state = _ahead(spec, deltas, buffers), {MOMENTUM: buffers}
    pairs = zip(now.anchors, directions, strict=True)
    return [less(anchor, scale(d, spec.lr)) for anchor, d in pairs], state


def less(anchor: Value, move: Value) -> Value:
    """anchor - move, in the math type and back in the anchor's."""
    return hlo.convert(hlo.subtract(widen(anchor), move), hlo.element_type(anchor))


def _ahead(spec: Momentum, deltas: Values, buffers: Values) -> list[Value]:
    if not spec.nesterov:
        return list(buffers)
    pairs = zip(deltas, buffers, strict=True)
    return [hlo.add(d, scale(b, spec.momentum)) for d, b in pairs]


RULE = OuterRule(step=step, state=slots, shards=True)
