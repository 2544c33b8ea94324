"""The merge of Decoupled DiLoCo (arXiv 2604.21428): by direction and by length.

With u_m = Δ_m / ‖Δ_m‖ for each tensor, and weights by tokens:

    Δ = mean ‖Δ_m‖ · d / ‖d‖,   d = mean u_m
    b <- β b + Δ          θ <- θ - γ (Δ + β b)

The length of a plain mean of M deltas that are nearly at right angles shrinks by
1 / √M; this one does not, so γ need not follow the number of workers. Deltas that
cancel give 0, as in a plain mean.

Which members a round waits for the run says: `quorum` and `grace_seconds` of an
experiment.
With `own_clocks` learners go on as in the paper, and are merged when they come: Δ_m is
then how far one went from the parameters it began with, and θ the newest ones. Without,
one that is left out begins with the merged state. The paper's further weight, tokens a
step, is the same for all workers of a run here and cancels.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.outer.diloco import descend, moved, slots
from pcp.passes.training.outer.parts.group import pack, unpack, weighted_mean
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Tensors
from pcp.passes.training.outer.spec import Decoupled
from pcp.training_plan import Asynchronous, EveryRound

Value = ir.Value
_ROW = 16
"""Lengths that travel as one tensor."""


def step(spec: Decoupled, now: OuterRound) -> tuple[list[Value], Tensors]:
    """New parameters and momenta."""
    deltas = moved(now)
    if not spec.radial:
        return descend(spec, now, weighted_mean(deltas, now.tokens))
    lengths = [_length(x) for x in deltas]
    units = [_over(x, n) for x, n in zip(deltas, lengths, strict=True)]
    # Not all numbers in one row: IREE 3.13 fuses it, with an operand a number, and
    # binds at most 32 to a dispatch.
    rows = [pack(lengths[i : i + _ROW]) for i in range(0, len(lengths), _ROW)]
    means = weighted_mean([*units, *rows], now.tokens)
    found = [
        n for row in means[len(units) :] for n in unpack(row, [()] * hlo.size(row))
    ]
    pairs = zip(means[: len(units)], found, strict=True)
    return descend(spec, now, [_along(d, length) for d, length in pairs])


def _along(direction: Value, length: Value) -> Value:
    """`direction` at the given length."""
    return scale(_over(direction, _length(direction)), length)


def _length(x: Value) -> Value:
    """‖x‖ of a tensor, with its largest element taken out: no square overflows."""
    top = _largest(x)
    ratio = _over(x, top)
    return hlo.multiply(top, hlo.sqrt(hlo.sum_all(hlo.multiply(ratio, ratio))))


def _largest(x: Value) -> Value:
    dimensions = range(len(hlo.shape_of(x)))
    zero = hlo.scalar(0.0, hlo.element_type(x))
    return hlo.reduce(hlo.abs(x), zero, dimensions, hlo.maximum)


def _over(x: Value, number: Value) -> Value:
    """x / number; 0 where the number is."""
    none = hlo.compare("EQ", number, hlo.zeros(number.type), "FLOAT")
    safe = hlo.select(none, hlo.constant_like(number, 1.0), number)
    return hlo.divide(x, hlo.splat(safe, hlo.shape_of(x)))


def plan(spec: Decoupled) -> Asynchronous | EveryRound:
    """Rounds, unless learners are to have clocks of their own."""
    return Asynchronous() if spec.own_clocks else EveryRound()


RULE = OuterRule(plan, step=step, state=slots, shards=True)
