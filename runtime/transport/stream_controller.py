"""The stream controller: more streams of a link for as long as more are faster.

The number of streams that fill a network follows from its rate, and from the windows,
which the system sizes. So a link begins with the number that fills the rate assumed in
`striped`, and has as many again in reserve. While data waits and all streams in use are
full, the controller measures the bytes that the peer acknowledges; now and then it
takes half as many streams more, keeps them if that brought a tenth more bytes a
second, and otherwise goes back and waits twice as long before it tries again.
"""

import time
from collections.abc import Callable

_PERIOD_SECONDS = 0.5
_ROUND_TRIPS = 4
"""A measurement takes the longer of the two, of the time in which data waited."""
_WORTH = 1.1
_PAUSE_SECONDS = 15.0


class StreamController:
    """The first `used` of `most` streams are in use; `first` at the beginning."""

    def __init__(
        self, first: int, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.used = min(first, most)
        self._most = most
        self.now = clock
        """The clock of `acknowledged`."""
        self._since: float | None = None
        self._waited = 0.0
        self._bytes = 0
        self._fastest = float("inf")
        self._settling = True
        self._before: tuple[int, float] | None = None
        self._pause = _PAUSE_SECONDS
        self._next = 0.0

    def full(self) -> None:
        """Note that data waits, since all streams in use are full."""
        if self._since is None:
            self._since = self.now()

    def rest(self) -> None:
        """Note that no data waits."""
        if self._since is not None:
            self._waited += self.now() - self._since
            self._since = None

    def acknowledged(self, count: int, sent: float) -> None:
        """Count `count` bytes, sent at that time (`now`), that the peer has taken."""
        self._fastest = min(self._fastest, self.now() - sent)
        if self._since is None:
            return
        self._bytes += count
        waited = self._waited + self.now() - self._since
        if waited >= max(_PERIOD_SECONDS, _ROUND_TRIPS * self._fastest):
            rate = self._bytes / waited
            self._bytes, self._waited, self._since = 0, 0.0, self.now()
            if self._settling:
                self._settling = False  # windows have yet to open
            else:
                self._judge(rate)

    def _judge(self, rate: float) -> None:
        if self._before is None:
            if self.now() >= self._next:
                self._widen(rate)
            return
        narrow, was = self._before
        self._before = None
        if rate >= _WORTH * was:
            self._pause = _PAUSE_SECONDS
            self._widen(rate)
            return
        self.used, self._settling = narrow, True
        self._next = self.now() + self._pause
        self._pause *= 2

    def _widen(self, rate: float) -> None:
        if self.used < self._most:
            self._before, self._settling = (self.used, rate), True
            self.used = min(self._most, self.used + max(1, self.used // 2))
