"""Whether what a member says it made may count: finite, of usual size, as granted.

    loss     a number
    delta    how far the inner steps moved the parameters, an L2 norm: finite, and per
             inner step at most `norm_limit` times the running median
    result   the same of the change of the shared state, in which no number has ceased
             to be finite
    claims   steps and tokens are those of the lease

A member's own fault shows in its own loss or delta, before the exchange. One that says
nothing of it shows in the result, and only by leaving it out.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

from pcp.training.coordinator.attempt import Attempt
from pcp.training.storage.nonfinite import listed
from pcp.training.wire.messages import (
    Computed,
    Prepared,
)

WINDOW = 64
"""Norms of which the running median is."""
ENOUGH = 8
"""Norms before one is judged by their median."""


class Norms:
    """The newest norms that counted."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._counted: deque[float] = deque(maxlen=WINDOW)

    def fault(self, value: float, what: str) -> str | None:
        """What is wrong with one; None if it may count."""
        if not math.isfinite(value):
            return f"the norm of {what} is {value}"
        if self._limit is None or len(self._counted) < ENOUGH:
            return None
        usual = median(self._counted)
        if value <= self._limit * usual:
            return None
        return (
            f"the norm of {what} is {value:.3g}, more than {self._limit:g} times the "
            f"usual {usual:.3g}"
        )

    def count(self, values: Iterable[float]) -> None:
        """These counted."""
        self._counted.extend(values)

    def forget(self) -> None:
        """Judge none by those before: what is usual has changed."""
        self._counted.clear()


class ValueGuard:
    """Judges members' parts of rounds, and results; see the module."""

    def __init__(self, norm_limit: float | None) -> None:
        self._deltas, self._results = Norms(norm_limit), Norms(norm_limit)
        self._pending: dict[str, float] = {}
        """Norms of the deltas of the attempt under way, by member."""

    def begin(self) -> None:
        """Another attempt."""
        self._pending.clear()

    def part(self, name: str, said: Computed, steps: int) -> str | None:
        """What is wrong with the inner steps of a member; None: they may count."""
        if said.loss is not None and not math.isfinite(said.loss):
            at = said.nonfinite_step
            return f"loss is {said.loss}" + (f" at step {at}" if at else "")
        if said.moved is None:
            return None
        a_step = said.moved / max(steps, 1)
        if fault := self._deltas.fault(a_step, "its change a step"):
            return fault
        self._pending[name] = a_step
        return None

    def result(self, said: Sequence[Prepared]) -> str | None:
        """What is wrong with a state, by members that prepared it; None: nothing.

        Most of them are believed.
        """
        bad = [message for message in said if message.spoiled]
        if 2 * len(bad) > len(said):
            return f"{listed(bad[0].spoiled)} is not finite"
        norms = [message.moved for message in said if message.moved is not None]
        if not norms:
            return None
        return self._results.fault(_middle(norms), "its change")

    def committed(self, said: Sequence[Prepared]) -> None:
        """A round counts: so do its norms."""
        norms = [message.moved for message in said if message.moved is not None]
        self._deltas.count(self._pending.values())
        self._results.count([_middle(norms)] if norms else [])
        self._pending.clear()

    def forget(self) -> None:
        """What is usual has changed, says an operator."""
        self._deltas.forget()
        self._results.forget()


def claim(attempt: Attempt, name: str, said: Prepared, sample: int, one: int) -> str:
    """What a member claims and was not granted; "" if it is as granted.

    `sample` tokens are a sample; `one` inner step takes so many samples.
    """
    steps = attempt.steps(name, one)
    tokens = attempt.samples(name) * sample
    if said.steps != steps:
        return f"claims {said.steps} inner steps on a lease of {steps}"
    if said.tokens != tokens:
        return f"claims {said.tokens} tokens on a lease of {tokens}"
    return ""


def _middle(values: Sequence[float]) -> float:
    """The median, of NaN too: such a value counts as larger than any other."""
    ordered = sorted(values, key=lambda v: math.inf if math.isnan(v) else v)
    return ordered[(len(ordered) - 1) // 2]
