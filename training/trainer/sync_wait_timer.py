"""The time for which a member waits for others in inner exchanges.

The worker's thread enters and leaves an exchange; the thread of heartbeats reads.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class SyncWaitTimer:
    """The inner exchanges of one round."""

    def __init__(self) -> None:
        self.waited = 0.0
        """Seconds spent in exchanges that have ended."""
        self._now: tuple[int, float | None] = (0, None)
        """How many exchanges were entered, and when the running one began."""

    @property
    def now(self) -> tuple[int, float | None]:
        """How many exchanges were entered; seconds in the last, None if it is over."""
        entered, since = self._now
        return entered, None if since is None else time.monotonic() - since

    @contextmanager
    def one(self) -> Iterator[None]:
        """A context of one exchange, whose time is waiting for others."""
        began, entered = time.monotonic(), self._now[0] + 1
        self._now = (entered, began)
        try:
            yield
        except BaseException:
            entered -= 1  # the exchange will be entered again
            raise
        finally:
            self._now = (entered, None)
            self.waited += time.monotonic() - began
