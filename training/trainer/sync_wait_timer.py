"""How long a member waits for the others in exchanges between its inner steps.

The worker's thread enters and leaves; the thread that sends heartbeats looks on.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class SyncWaitTimer:
    """The exchanges of one round that take place between inner steps."""

    def __init__(self) -> None:
        self.waited = 0.0
        """Seconds spent in those that ended."""
        self._now: tuple[int, float | None] = (0, None)
        """How many were entered, and since when the last one goes on."""

    @property
    def now(self) -> tuple[int, float | None]:
        """How many were entered; seconds waited in the last, None if it is over."""
        entered, since = self._now
        return entered, None if since is None else time.monotonic() - since

    @contextmanager
    def one(self) -> Iterator[None]:
        """Waits in here are for the others."""
        began, entered = time.monotonic(), self._now[0] + 1
        self._now = (entered, began)
        try:
            yield
        except BaseException:
            entered -= 1  # it will be entered again
            raise
        finally:
            self._now = (entered, None)
            self.waited += time.monotonic() - began
