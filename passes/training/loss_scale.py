"""A derivative of the loss times a factor, so that f16 cotangents do not vanish.

    s = 2^16 at first
    a gradient that is infinite or NaN:  the step is not made, s <- s / 2, k <- 0
    else:                                k <- k + 1; after `growth_interval` such steps
                                         s <- 2 s, k <- 0

as torch.amp.GradScaler has it (Micikevicius et al., arXiv:1710.03740, section 3.2). The
factor is state of the optimizer: @grad takes it, and divides what it gives by it, so
that whatever stands between @grad and @apply (means, clipping, collectives) has the
gradients themselves; an infinite one of one member is infinite for all that sum it up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.functions import Port
from pcp.passes.training.policy import DYNAMIC, Policy

Value = ir.Value

INITIAL = 65536.0
GROWTH, BACKOFF = 2.0, 0.5


@dataclass(frozen=True)
class LossScale:
    """The factor over time: `interval` steps without overflow double it; 0: fixed."""

    initial: float
    interval: int

    @classmethod
    def of(cls, policy: Policy) -> "LossScale | None":
        """The policy's, or None where it has none."""
        if not policy.scales:
            return None
        if policy.scale in ("", DYNAMIC):
            return cls(INITIAL, policy.growth_interval)
        return cls(float(policy.scale), 0)

    @property
    def ports(self) -> list[Port]:
        """What is kept: the factor, and how many steps in a row were finite."""
        number = ir.IntegerType.get_signless(32)
        return [self.port, Port("finite_steps", "state", hlo.tensor((), number))]

    @property
    def port(self) -> Port:
        """The factor, as @grad takes it."""
        return Port("loss_scale", "state", hlo.tensor((), ir.F32Type.get()))

    @property
    def first(self) -> dict[str, float]:
        """What these are before the first step, where that is not 0."""
        return {self.port.name: self.initial}

    def next(self, finite: Value, scale: Value, count: Value) -> list[Value]:
        """The factor and the count behind a step; all are rank-0 tensors."""
        if not self.interval:
            return [scale, count]
        count = hlo.add(count, hlo.constant_like(count, 1))
        full = hlo.compare("EQ", count, hlo.constant_like(count, self.interval))
        none = hlo.constant_like(count, 0)
        grown = hlo.select(full, _times(scale, GROWTH), scale)
        counted = hlo.select(full, none, count)
        return [
            hlo.select(finite, grown, _times(scale, BACKOFF)),
            hlo.select(finite, counted, none),
        ]


def _times(x: Value, factor: float) -> Value:
    return hlo.multiply(x, hlo.constant_like(x, factor))


def unscaled(gradients: Sequence[Value], scale: Value) -> list[Value]:
    """The gradients of the loss, of those of the loss times `scale`."""
    inverse = hlo.divide(hlo.constant_like(scale, 1.0), scale)
    return [_over(g, inverse) for g in gradients]


def _over(g: Value, inverse: Value) -> Value:
    factor = hlo.convert(inverse, hlo.element_type(g))
    return hlo.multiply(g, hlo.splat(factor, hlo.shape_of(g)))


def all_finite(tensors: Sequence[Value]) -> Value:
    """Whether no element is infinite or NaN: a rank-0 truth value."""
    counts = [_infinite(x) for x in tensors]
    total = reduce(hlo.add, counts)
    return hlo.compare("EQ", total, hlo.constant_like(total, 0.0), "FLOAT")


def _infinite(x: Value) -> Value:
    """How many elements are, as f32: at least 1 where one is."""
    finite = hlo.op(
        "is_finite", [x], [hlo.like(x, element=ir.IntegerType.get_signless(1))]
    ).result
    f32 = hlo.like(x, element=ir.F32Type.get())
    found = hlo.select(finite, hlo.zeros(f32), hlo.constant_like(f32, 1.0))
    rows = hlo.reduce_sum(found, range(1, len(hlo.shape_of(found))))
    return hlo.sum_all(rows)


def kept_unless(
    finite: Value, new: Sequence[Value], old: Sequence[Value]
) -> list[Value]:
    """The new tensors of a step that counts, else the old ones."""
    return [hlo.select(finite, n, o) for n, o in zip(new, old, strict=True)]
