"""Whether a member gets on: that it lives says its heartbeat, that it works its steps.

A member that is to make inner steps makes the next one within

    max(LEAST_SECONDS, TIMES x the median of its own newest rounds' seconds a step)

by the shepherd's clock. Before its first step a program may have to be loaded and
compiled for the device: FIRST_SECONDS. While it waits for others, in an exchange inside
a round or where a group is formed, it makes none: who it waits for is looked at.
"""

from collections import deque
from statistics import median

from pcp.training.wire.messages import (
    Whereabouts,
)

LEAST_SECONDS = 10.0
TIMES = 10.0
FIRST_SECONDS = 600.0
_ROUNDS = 16
_WITH_OTHERS = ("exchange", "forming")


class Pace:
    """How fast a member's inner steps are, and when it made the newest; seconds."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_ROUNDS)
        self._since: float | None = None
        self._steps = -1
        self.at: Whereabouts | None = None
        """What it said last."""

    @property
    def limit(self) -> float:
        """Within which a step is made."""
        if not self._usual:
            return FIRST_SECONDS
        return max(LEAST_SECONDS, TIMES * median(self._usual))

    def heard(self, at: Whereabouts, now: float) -> None:
        """Where its own thread is; a step more, or one with others, is progress."""
        if at.steps != self._steps or at.call in _WITH_OTHERS:
            self._since, self._steps = now, at.steps
        self.at = at

    def made(self, steps: int, seconds: float) -> None:
        """So many steps took it so long."""
        self._usual.append(seconds / max(steps, 1))

    def rests(self) -> None:
        """It is to make no steps."""
        self._since = None

    def works(self, now: float) -> None:
        """It is to make steps, from now on at the latest."""
        if self._since is None:
            self._since = now

    def stalled(self, now: float) -> str | None:
        """Why it does not get on; None if it does, or never said where it is."""
        if self._since is None or self.at is None or now - self._since <= self.limit:
            return None
        at, usual = self.at, median(self._usual) if self._usual else None
        known = f"; usual are {usual:.2g} s" if usual is not None else ""
        return (
            f"no inner step for {now - self._since:.1f} s{known}: it is in "
            f"{at.call!r} for {at.since:.1f} s, behind step {at.steps}"
        )
