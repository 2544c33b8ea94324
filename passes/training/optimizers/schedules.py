"""The learning rate at step k = 1, 2, ..., as a rank-0 tensor.

With w warm-up steps, T steps in all, d final steps, peak η and floor μ:

    constant        min(1, k/w) η
    warmup_cosine   k <= w: (k/w) η;  else μ + (η-μ) (1 + cos(π q)) / 2,
                    q = min(1, (k-w)/(T-w))          (arXiv 1608.03983)
    wsd             k <= w: (k/w) η;  else η - (η-μ) clip((k-(T-d))/d, 0, 1)
                    (warm-up, stable, decay: arXiv 2404.06395)
"""

import math
from collections.abc import Callable

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.spec import Optimizer

Value = ir.Value


def learning_rate(spec: Optimizer, step: Value) -> Value:
    """The rate for `step`, a rank-0 float tensor that counts from 1."""
    rate = _SHAPES[spec.schedule](spec, step)
    if not spec.warmup_steps:
        return rate
    fraction = _times(step, 1 / spec.warmup_steps)
    rising = _times(fraction, spec.lr)
    warm = hlo.compare("LE", step, hlo.constant_like(step, spec.warmup_steps), "FLOAT")
    return hlo.select(warm, rising, rate)


def _constant(spec: Optimizer, step: Value) -> Value:
    return hlo.constant_like(step, spec.lr)


def _cosine(spec: Optimizer, step: Value) -> Value:
    progress = _progress(step, spec.warmup_steps, spec.total_steps)
    wave = hlo.cosine(_times(progress, math.pi))
    half = _times(_plus(wave, 1.0), 0.5 * (spec.lr - spec.min_lr))
    return _plus(half, spec.min_lr)


def _wsd(spec: Optimizer, step: Value) -> Value:
    progress = _progress(step, spec.total_steps - spec.decay, spec.total_steps)
    return _plus(_times(progress, spec.min_lr - spec.lr), spec.lr)


_SHAPES: dict[str, Callable[[Optimizer, Value], Value]] = {
    "constant": _constant,
    "warmup_cosine": _cosine,
    "wsd": _wsd,
}


def _progress(step: Value, start: int, end: int) -> Value:
    """0 at `start`, 1 at `end`, clamped."""
    fraction = _times(_plus(step, -float(start)), 1 / (end - start))
    zero, one = (hlo.constant_like(step, value) for value in (0.0, 1.0))
    return hlo.clamp(zero, fraction, one)


def _times(x: Value, factor: float) -> Value:
    return hlo.multiply(x, hlo.constant_like(x, factor))


def _plus(x: Value, term: float) -> Value:
    return hlo.add(x, hlo.constant_like(x, term)) if term else x
