"""A shepherd that stood still listens before it holds time against others.

A process that was frozen, or a machine that slept, wakes with all that the others said
meanwhile unread in its sockets, and may look at the clock before it has read them. Who
was silent, or late, by that clock alone need not have been.
"""

import math

_SHORTEST = 0.25
"""Seconds; turns of a loop that has nothing to do take less, whatever the limit."""


class Standstill:
    """Notices turns that took far too long; `limit` s of silence are a death."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._turned = math.inf
        self._listens_until: float | None = None

    def over(self, now: float) -> bool:
        """Whether silence counts in this turn: once all had the time to be heard.

        And then once at least: a loop whose turns all take too long judges too.
        """
        gap, self._turned = now - self._turned, now
        if self._listens_until is None and gap > max(self._limit / 2, _SHORTEST):
            self._listens_until = now + self._limit
        if self._listens_until is not None and now < self._listens_until:
            return False
        self._listens_until = None
        return True
