"""Suspend detection: a loop that was suspended reads before it judges its peers.

A process that was frozen, or a machine that slept, wakes with unread frames of its
peers in its sockets, and may look at the clock before it has read them. By the clock
alone a live peer then seems silent, or late.
"""

import math


class SuspendDetection:
    """Notices turns of a loop that took far too long. Times are seconds.

    A turn more than `longest` after the one before, besides the pause that the loop
    meant to make, is a suspension: for `listens` from then on silence proves nothing.
    """

    def __init__(self, longest: float, listens: float) -> None:
        self._longest, self._listens = longest, listens
        self._turned = math.inf
        self._listens_until: float | None = None

    @property
    def listening(self) -> bool:
        """Whether silence proves nothing in this turn."""
        return self._listens_until is not None

    def turned(self, now: float, pause: float = 0.0) -> bool:
        """Begin a turn of the loop, after a `pause`; whether silence counts in it.

        After a time of listening it counts once at least: a loop whose turns all take
        too long judges its peers too.
        """
        gap, self._turned = now - self._turned, now
        if self._listens_until is None and gap > pause + self._longest:
            self._listens_until = now + self._listens
        elif self._listens_until is not None and now >= self._listens_until:
            self._listens_until = None
        return self._listens_until is None
