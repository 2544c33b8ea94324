"""The value guard: a member's part counts if finite, of usual size, as granted.

    loss     a number
    delta    how far the inner steps moved the parameters, an L2 norm: finite, and per
             inner step at most `norm_limit` times the running median
    result   the same of the change of the shared state, in which no number has become
             one that is not finite
    claims   steps and tokens are those of the lease

A member's fault shows in its loss or delta, before the exchange. A fault that the
member does not report shows in the result, and the guard finds the member only by
leaving it out.
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
"""How many norms the running median is of."""
ENOUGH = 8
"""How many norms there must be before one is compared with their median."""


class Norms:
    """The newest norms that counted."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._counted: deque[float] = deque(maxlen=WINDOW)

    def fault(self, value: float, what: str) -> str | None:
        """The fault of a norm; None if it may count."""
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
        """Add norms that counted."""
        self._counted.extend(values)

    def forget(self) -> None:
        """Forget the norms: the usual size has changed."""
        self._counted.clear()


class ValueGuard:
    """Checks members' parts of rounds, and results; see the module."""

    def __init__(self, norm_limit: float | None) -> None:
        self._deltas, self._results = Norms(norm_limit), Norms(norm_limit)
        self._pending: dict[str, float] = {}
        """The norms of the deltas of the attempt under way, by member."""

    def begin(self) -> None:
        """Begin with another attempt."""
        self._pending.clear()

    def part(self, name: str, said: Computed, steps: int) -> str | None:
        """The fault of a member's inner steps; None: they may count."""
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
        """The fault of a state, by the reports of members that prepared it, or None.

        The report of most of them counts.
        """
        bad = [message for message in said if message.spoiled]
        if 2 * len(bad) > len(said):
            return f"{listed(bad[0].spoiled)} is not finite"
        norms = [message.moved for message in said if message.moved is not None]
        if not norms:
            return None
        return self._results.fault(_middle(norms), "its change")

    def committed(self, said: Sequence[Prepared]) -> None:
        """Add the norms of a committed round."""
        norms = [message.moved for message in said if message.moved is not None]
        self._deltas.count(self._pending.values())
        self._results.count([_middle(norms)] if norms else [])
        self._pending.clear()

    def forget(self) -> None:
        """Forget the norms: an operator says that the usual size has changed."""
        self._deltas.forget()
        self._results.forget()


def claim(attempt: Attempt, name: str, said: Prepared, sample: int, one: int) -> str:
    """A claim of a member beyond its lease; "" if there is none.

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
    """The median; NaN counts as larger than any other value."""
    ordered = sorted(values, key=lambda v: math.inf if math.isnan(v) else v)
    return ordered[(len(ordered) - 1) // 2]
