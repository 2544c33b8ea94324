"""Whether a member gets on: that it lives says its heartbeat, that it works its steps.

A member that is to make inner steps, or to validate, makes the next one within

    max(LEAST_SECONDS, TIMES x the median of its own newest rounds' seconds a step)

by the shepherd's clock; where this shepherd knows none yet, of what its predecessor
found. Before its first step a program may have to be loaded and compiled for the
device: FIRST_SECONDS, once it has begun with its order, or TIMES the longest that
others of its target took, and a minute at least. While it waits for others, in
an exchange or where a group is formed, it makes none: who it waits for is looked at. A
newer order ends such a wait, so one that began before it is no progress; nor is one for
others that are all further.

A member that does not come to the group of its newest order is left out of it, and
stays away until it does something else than then.
"""

import math
from collections import deque
from statistics import median

from pcp.training.wire.messages import (
    Whereabouts,
)

LEAST_SECONDS = 10.0
TIMES = 10.0
FIRST_SECONDS = 600.0
_ROUNDS = 16
_MINUTE = 60.0
_ABOUT = {"loading": 60 * _MINUTE, "restoring": 60 * _MINUTE, "validating": _MINUTE}
"""What else a member may be about, which comes before an order; seconds, at least.

A state that is large comes slowly where a network is; one that stops coming is an error
of the worker's own.
"""
_DRIFT = 0.999
"""Of a second by another machine's clock: so much has gone by, at least."""


class Pace:
    """How fast a member's inner steps are, and when it made the newest; seconds."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_ROUNDS)
        self._since: float | None = None
        self._steps = -1
        self._ordered, self._joined = -math.inf, False
        self._away: float | None = None
        self.behind = False
        """Whether all that it could wait for are further than it is."""
        self.first_took: float | None = None
        """Seconds until its process had made a step, if this shepherd saw that."""
        self.first: float | None = None
        """The longest such time of members with the same target."""
        self.before: float | None = None
        """Seconds that a step of this program took under the shepherd before."""
        self.at: Whereabouts | None = None
        """What it said last."""

    @property
    def limit(self) -> float:
        """Within which a step is made."""
        known, call = self._known, None if self.at is None else self.at.call
        if call in _ABOUT:
            return max(_ABOUT[call], TIMES * (known or 0.0))
        if known is None and self.idle:
            return LEAST_SECONDS  # there is nothing to load before it begins
        if known is None:
            first = self.first
            return FIRST_SECONDS if first is None else max(_MINUTE, TIMES * first)
        return max(LEAST_SECONDS, TIMES * known)

    @property
    def usual(self) -> float | None:
        """Seconds that a step takes, once that is known."""
        return median(self._usual) if self._usual else None

    @property
    def _known(self) -> float | None:
        """The same, or what it was for who has made steps before."""
        stepped = self.at is not None and self.at.steps
        return self.before if self.usual is None and stepped else self.usual

    @property
    def idle(self) -> bool:
        """Whether it does nothing for its newest order, as far as it says."""
        if self.at is None or self.at.call == "waiting":
            return True
        return self.at.with_others and not self._joined

    def ordered(self, now: float) -> None:
        """It has an order, which ends what it waited for before."""
        self._ordered, self._joined, self.behind = now, False, False

    def heard(self, at: Whereabouts, now: float) -> None:
        """Where its own thread is; a step more, or one with others, is progress."""
        newest = now - _DRIFT * at.since >= self._ordered
        self._joined = newest and at.with_others and not self.behind
        if self._away is not None and now - _DRIFT * at.since >= self._away:
            self._away = None
        if at.steps > 0 == self._steps and self._since is not None:
            self.first_took = now - self._since
        if at.steps != self._steps or self._joined:
            self._since, self._steps = now, at.steps
        self.at = at

    def within(self, seconds: float) -> bool:
        """Whether it is with others, as it says, for as long as that."""
        return self.at is not None and self.at.with_others and self.at.since >= seconds

    @property
    def away(self) -> bool:
        """Whether it does since long what it did when a group was formed without it."""
        return self._away is not None

    def left(self, now: float) -> None:
        """A group is formed without it: it did not come."""
        self._away = now

    def may_come(self, now: float) -> bool:
        """Whether it may begin with its order yet: there is time, or it is about it."""
        return now - self._ordered <= self.come_seconds or (
            self.at is not None and self.at.call in _ABOUT
        )

    @property
    def come_seconds(self) -> float:
        """Within which it begins with an order."""
        return max(LEAST_SECONDS, TIMES * (self.usual or 0.0))

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
        at, usual = self.at, self._known
        known = f"; usual are {usual:.2g} s" if usual is not None else ""
        return (
            f"no inner step for {now - self._since:.1f} s{known}: it is in "
            f"{at.call!r} for {at.since:.1f} s, behind step {at.steps}"
        )
