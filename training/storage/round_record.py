"""The figures of a committed round, from what its members reported."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter

from pcp.training.wire.messages import (
    Prepared,
)


@dataclass(frozen=True)
class MemberRound:
    """One worker's part of a round. `loss` is the mean over its inner steps."""

    worker: int
    """Its index."""
    loss: float
    steps: int
    tokens: int
    compute_seconds: float
    exchange_seconds: float
    bytes_sent: int
    bytes_received: int
    processor_seconds: float
    """Processor seconds of all its threads, since its last report."""
    resident_bytes: int
    data_wait_seconds: float = 0.0
    """Seconds for which its inner steps waited for batches."""
    nonfinite_step: int | None = None
    """The first inner step, from 1, with a loss that is NaN or infinite."""
    nonfinite_loss: float | None = None
    """The loss of that step."""
    moved: float | None = None
    """The L2 norm of the round's change of the shared state."""
    gradient_norm: float | None = None
    """The L2 norm of the last inner step's gradient, unclipped; None: not known."""


@dataclass(frozen=True)
class Round:
    """One committed round. Losses are means over inner steps, in nats a token.

    A NaN among the workers' losses makes the least and the largest loss NaN too.
    """

    round: int
    epoch: int
    workers: int
    loss: float
    loss_first: float
    """The mean loss of the first inner steps."""
    loss_min: float
    loss_max: float
    tokens: int
    tokens_total: int
    seconds: float
    tokens_per_second: float
    bytes_sent: int
    """Bytes that all workers together sent."""
    bytes_sent_per_worker: int
    compute_seconds: float
    """Seconds of the slowest worker."""
    exchange_seconds: float
    learning_rate: float | None
    """The learning rate of the last inner step, the largest of the members that know.

    An older pcp wrote the peak of the schedule.
    """
    time: float
    """Unix time of the commit."""
    members: tuple[MemberRound, ...] = ()
    metrics: dict[str, int | float] = field(default_factory=dict)
    """The metrics of the program: means by tokens, and sums of integers."""

    @property
    def gradient_norm(self) -> float | None:
        """The mean of the members' gradient norms that are known."""
        norms = [m.gradient_norm for m in self.members if m.gradient_norm is not None]
        return sum(norms) / len(norms) if norms else None

    @property
    def broken(self) -> int:
        """How many workers' losses are NaN or infinite."""
        return sum(not math.isfinite(member.loss) for member in self.members)


def data_wait_share(rounds: Sequence[Round]) -> float:
    """The share of the inner steps' time that was waiting for batches."""
    members = [member for record in rounds for member in record.members]
    total = sum(member.compute_seconds for member in members)
    return sum(member.data_wait_seconds for member in members) / max(total, 1e-9)


MEMBER_KEYS = [each.name for each in fields(MemberRound) if each.name != "worker"]
_taken = attrgetter(*MEMBER_KEYS)


def summarise(
    number: int,
    epoch: int,
    prepared: Sequence[Prepared],
    *,
    workers: Sequence[int],
    tokens_before: int,
    seconds: float,
    now: float,
) -> Round:
    """The record of a round from what its members, by index, reported."""
    tokens = sum(p.tokens for p in prepared)
    sent = sum(p.bytes_sent for p in prepared)
    rates = [p.learning_rate for p in prepared if p.learning_rate is not None]
    return Round(
        round=number,
        epoch=epoch,
        workers=len(prepared),
        loss=sum(p.loss * p.tokens for p in prepared) / tokens,
        loss_first=sum(p.loss_first for p in prepared) / len(prepared),
        loss_min=_extreme(min, prepared),
        loss_max=_extreme(max, prepared),
        tokens=tokens,
        tokens_total=tokens_before + tokens,
        seconds=seconds,
        tokens_per_second=tokens / max(seconds, 1e-9),
        bytes_sent=sent,
        bytes_sent_per_worker=sent // len(prepared),
        compute_seconds=max(p.compute_seconds for p in prepared),
        exchange_seconds=max(p.exchange_seconds for p in prepared),
        learning_rate=max(rates, default=None),
        time=now,
        members=tuple(map(_member, workers, prepared)),
        metrics=_metrics(prepared),
    )


def _extreme(
    of: Callable[[Iterable[float]], float], prepared: Sequence[Prepared]
) -> float:
    """The least or the largest loss; NaN wherever among the others one stands."""
    losses = [p.loss for p in prepared]
    return math.nan if any(map(math.isnan, losses)) else of(losses)


def _metrics(prepared: Sequence[Prepared]) -> dict[str, int | float]:
    """The metrics that all members report."""
    given = [p.metrics or {} for p in prepared]
    shared = [name for name in given[0] if all(name in each for each in given)]
    tokens = [p.tokens for p in prepared]
    return {name: _joined([each[name] for each in given], tokens) for name in shared}


def _joined(values: Sequence[int | float], tokens: Sequence[int]) -> int | float:
    """The sum of integers, else the mean by tokens."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    pairs = zip(values, tokens, strict=True)
    return sum(value * count for value, count in pairs) / max(sum(tokens), 1)


def _member(worker: int, prepared: Prepared) -> MemberRound:
    return MemberRound(worker, *_taken(prepared))
