"""DiLoCo's outer step (arXiv 2311.08105).

Δ = Σ_m t_m (θ - θ_m) / Σ_m t_m
b <- β b + Δ          θ <- θ - γ (Δ + β b)      (without look-ahead: θ - γ b)
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.optimizers.numbers import scale, widen
from pcp.passes.outer.group import weighted_mean
from pcp.passes.outer.rule import OuterRule, Values
from pcp.passes.outer.spec import DiLoCo

Value = ir.Value


def step(
    spec: DiLoCo, anchors: Values, locals_: Values, momenta: Values, tokens: Value
) -> tuple[list[Value], list[Value]]:
    """New parameters and momenta; `anchors` is θ, `locals_` is this worker's θ_m."""
    starts = [widen(x) for x in anchors]
    moved = [
        hlo.subtract(start, widen(own))
        for start, own in zip(starts, locals_, strict=True)
    ]
    deltas = weighted_mean(moved, tokens)
    directions, buffers = deltas, []
    if spec.momentum:
        pairs = zip(momenta, deltas, strict=True)
        buffers = [hlo.add(scale(b, spec.momentum), d) for b, d in pairs]
        directions = _ahead(spec, deltas, buffers)
    new = [
        hlo.convert(hlo.subtract(start, scale(d, spec.lr)), hlo.element_type(anchor))
        for anchor, start, d in zip(anchors, starts, directions, strict=True)
    ]
    return new, buffers


def _ahead(spec: DiLoCo, deltas: Values, buffers: Values) -> list[Value]:
    if not spec.nesterov:
        return list(buffers)
    pairs = zip(deltas, buffers, strict=True)
    return [hlo.add(d, scale(b, spec.momentum)) for d, b in pairs]


RULE = OuterRule(step=step, has_momentum=lambda spec: spec.momentum > 0)
