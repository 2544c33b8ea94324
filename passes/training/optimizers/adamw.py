"""AdamW (arXiv 1711.05101), with torch.optim.AdamW's order of operations.

m <- β1 m + (1-β1) g          v <- β2 v + (1-β2) g²
p <- (1 - η λ) p - η/(1-β1^k) · m / (√v/√(1-β2^k) + ε)
"""

import math
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import like, scale
from pcp.passes.training.optimizers.rule import Clock, OptimizerRule, decays
from pcp.passes.training.optimizers.spec import AdamW

Value = ir.Value


@dataclass(frozen=True)
class AdamWScalars:
    """What all parameters of a step share: rank-0 tensors."""

    rate: Value  # η / (1 - β1^k)
    keep: Value  # 1 - η λ
    root: Value  # 1 / √(1 - β2^k)
    first: float | Value  # (1 - β1) c, with c what gradients are clipped by
    second: float | Value  # √(1 - β2) c: squared with g, so that g² cannot overflow


def before(spec: AdamW, clock: Clock) -> AdamWScalars:
    """The bias corrections and the decay of this step."""
    one = hlo.constant_like(clock.lr, 1.0)
    decayed = hlo.multiply(clock.lr, hlo.constant_like(clock.lr, spec.weight_decay))
    return AdamWScalars(
        rate=hlo.divide(clock.lr, _correction(spec.beta1, clock.step)),
        keep=hlo.subtract(one, decayed),
        root=hlo.divide(one, hlo.sqrt(_correction(spec.beta2, clock.step))),
        first=_clipped(1 - spec.beta1, clock.clip),
        second=_clipped(math.sqrt(1 - spec.beta2), clock.clip),
    )


def _clipped(weight: float, clip: Value | None) -> float | Value:
    return weight if clip is None else scale(clip, weight)


def _correction(beta: float, step: Value) -> Value:
    """1 - β^k.

    Through expm1: in float32, 1 - 0.999^1 as it stands has an error of 6e-5.
    """
    if beta == 0:
        return hlo.constant_like(step, 1.0)
    exponent = hlo.multiply(step, hlo.constant_like(step, math.log(beta)))
    return hlo.negate(hlo.exponential_minus_one(exponent))


def update(
    spec: AdamW, scalars: AdamWScalars, p: Value, g: Value, m: Value, v: Value
) -> tuple[Value, ...]:
    """New parameter, first and second moment."""
    m = hlo.add(scale(m, spec.beta1), scale(g, scalars.first))
    root = scale(g, scalars.second)
    v = hlo.add(scale(v, spec.beta2), hlo.multiply(root, root))
    spread = hlo.add(scale(hlo.sqrt(v), scalars.root), like(spec.eps, v))
    kept = scale(p, scalars.keep) if decays(spec, p) else p
    return hlo.subtract(kept, scale(hlo.divide(m, spread), scalars.rate)), m, v


RULE = OptimizerRule(slots=lambda spec: ("m", "v"), update=update, before=before)
