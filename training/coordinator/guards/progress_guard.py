"""The progress guard: a heartbeat shows that a member lives, its steps that it works.

A member that is to make inner steps, or to validate, makes the next one within

    max(LEAST_SECONDS, TIMES x the median of its own newest rounds' seconds a step)

by the shepherd's clock; of a round that was tried again, or prepared under the shepherd
before, by the member's report. A new shepherd uses the seconds a step of the shepherd
before it. Before the first step the member may have to load its program and compile it
for the device: it has FIRST_SECONDS, once it has begun with its `RoundStart`, or TIMES
the longest that others of its target took, and a minute at least. A member that has
made steps in no whole round yet has TIMES what its newest steps took by its heartbeats,
and a minute at least. A member that waits for others, in an exchange or in the
formation of a group, makes no steps: the guard checks those it waits for. A newer
message ends such a wait, so a wait that began before it is no progress; nor is a wait
for members that are all further.

A member that is left out and asked anew has no more time by that: the seconds of
attempts in which its thread sent nothing and stayed in one call count together.

A round goes on without a member after `Pace.leave_seconds`, which may be half as long,
where the others wait for it: that costs the member its part of the round. A member that
does not come to the group of its newest message is left out of the group likewise,
and counts as away until its whereabouts change.
"""

import math
from collections import deque
from statistics import median

from pcp.training.wire.messages import (
    Whereabouts,
)

LEAST_SECONDS = 10.0
LEAVE_SECONDS = 5.0
"""The least seconds after which a round goes on without a member that does nothing."""
TIMES = 10.0
FIRST_SECONDS = 600.0
_ROUNDS = 16
_MINUTE = 60.0
_ABOUT = {"loading": 60 * _MINUTE, "restoring": 60 * _MINUTE, "validating": _MINUTE}
"""The least seconds for other work of a member, which comes before a message.

A large state comes slowly over a slow network; a transfer that stops is an error that
the worker itself finds.
"""
_DRIFT = 0.999
"""The least seconds of this clock in a second of another machine's clock."""


class Pace:
    """The speed of a member's inner steps, and when it made the newest; seconds."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=_ROUNDS)
        self.usual: float | None = None
        """The usual seconds of a step; None: not known yet."""
        self._since: float | None = None
        self._steps = -1
        self._ordered, self._joined = -math.inf, False
        self.away = False
        """Whether its whereabouts are those of when a group was formed without it."""
        self._works, self._asked, self._acted = False, -math.inf, False
        """Whether it is to make steps; since when, and if it did anything since."""
        self._idle = 0.0
        """Seconds before that rest in which it was to make steps, and did nothing."""
        self._stepped: float | None = None
        """When a heartbeat had new steps, or it was to make the first; also at rest."""
        self._seen: float | None = None
        """Seconds a step until the newest one, by its heartbeats."""
        self.behind = False
        """Whether all members that it could wait for are further."""
        self.first_took: float | None = None
        """Seconds to the first step of its process, if this shepherd saw that."""
        self.first: float | None = None
        """The longest such time of members with the same target."""
        self.before: float | None = None
        """Seconds that a step of this program took under the shepherd before."""
        self.at: Whereabouts | None = None
        """Its last whereabouts."""

    @property
    def limit(self) -> float:
        """The seconds within which a step must be made."""
        known, call = self._known, None if self.at is None else self.at.call
        if call in _ABOUT:
            return max(_ABOUT[call], TIMES * (known or 0.0))
        if known is None and self.idle:
            return LEAST_SECONDS  # no program is to be loaded before it begins
        if known is None:
            took = self.first if self._seen is None else self._seen
            return FIRST_SECONDS if took is None else max(_MINUTE, TIMES * took)
        return max(LEAST_SECONDS, TIMES * known)

    @property
    def leave_seconds(self) -> float:
        """The seconds after which a round goes on without it, if the others wait."""
        known, call = self._known, None if self.at is None else self.at.call
        if known is None or call in _ABOUT:
            return self.limit
        return max(LEAVE_SECONDS, TIMES * known)

    @property
    def _known(self) -> float | None:
        """The usual seconds of a step, here or under the shepherd before."""
        stepped = self.at is not None and self.at.steps
        return self.before if self.usual is None and stepped else self.usual

    @property
    def idle(self) -> bool:
        """Whether it does nothing for its newest message, by its whereabouts."""
        if self.at is None or self.at.call == "waiting":
            return True
        return self.at.with_others and not self._joined

    def ordered(self, now: float) -> None:
        """A message was sent to it, which ends its earlier wait."""
        self._ordered, self._joined, self.behind = now, False, False

    def heard(self, at: Whereabouts, now: float) -> None:
        """Note its whereabouts; a further step, or a wait for others, is progress."""
        entered = now - _DRIFT * at.since
        self._joined = entered >= self._ordered and at.with_others and not self.behind
        if self.at is None or not _stays(self.at, at):
            self.away = False
        self.acted(entered)
        if at.steps > 0 == self._steps and self._since is not None:
            self.first_took = now - self._since
        if (made := at.steps - max(self._steps, 0)) > 0:
            if self._stepped is not None:
                self._seen = (now - self._stepped) / made
            self._stepped = now
        if at.steps != self._steps or self._joined:
            self._since, self._steps, self._idle = now, at.steps, 0.0
        self.at = at

    def idle_seconds(self, now: float) -> float:
        """The seconds for which it was to make a step, and made none."""
        return 0.0 if self._since is None else self._idle + now - self._since

    def within(self, seconds: float) -> bool:
        """Whether it is with others, as it says, for as long as that."""
        return self.at is not None and self.at.with_others and self.at.since >= seconds

    def may_come(self, now: float) -> bool:
        """Whether it may still begin with its message: it has time, or is at it.

        One that validates is, while it gets on with that.
        """
        if now - self._ordered <= self.come_seconds:
            return True
        call = None if self.at is None else self.at.call
        gets_on = call != "validating" or self.idle_seconds(now) <= self.come_seconds
        return call in _ABOUT and gets_on

    @property
    def come_seconds(self) -> float:
        """The seconds within which it must begin with a message."""
        return max(LEAST_SECONDS, TIMES * (self.usual or 0.0))

    def made(self, steps: int, seconds: float) -> None:
        """Note how long so many steps took."""
        self._took.append(seconds / max(steps, 1))
        self.usual = median(self._took)

    def says(self, steps: int, seconds: float) -> None:
        """Note how long so many steps took as the member says, if nobody saw it."""
        if self.usual is None:
            self.made(steps, seconds)

    def acted(self, when: float) -> None:
        """Note that its thread sent a message, or entered a call."""
        if when >= self._asked:
            self._acted, self._idle = True, 0.0

    def rests(self, now: float) -> None:
        """Note that it is to make no steps."""
        if self._works and self._since is not None and not self._acted:
            self._idle += now - self._since
        self._works, self._since = False, None

    def works(self, now: float) -> None:
        """Note that it is to make steps, from now on at the latest."""
        if not self._works:
            self._works, self._asked, self._acted = True, now, False
        if self._since is None:
            self._since = now
        if self._stepped is None:
            self._stepped = now

    def stalled(self, now: float) -> str | None:
        """Why it makes no progress; None if it does, or has sent no whereabouts."""
        if self._since is None or self.at is None:
            return None
        idle = self.idle_seconds(now)
        if idle <= LEAST_SECONDS or idle <= self.limit:
            return None
        at, usual = self.at, self._known
        known = f"; usual are {usual:.2g} s" if usual is not None else ""
        return (
            f"no inner step for {idle:.1f} s{known}: it is in "
            f"{at.call!r} for {at.since:.1f} s, behind step {at.steps}"
        )


def _stays(before: Whereabouts, at: Whereabouts) -> bool:
    """Whether a thread has not moved between two reports of its whereabouts."""
    same = (before.call, before.steps) == (at.call, at.steps)
    return same and at.since >= before.since
