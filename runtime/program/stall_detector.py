"""Stall detection: whether a program makes progress, or waits for itself.

No operand comes during a long computation, nor during a stall. The difference is that a
computation uses the processor, or an exchange is under way. A program on a device that
computes without the processor counts as stalled; so does any program after `MOST` times
the patience.
"""

import threading
import time
from collections.abc import Callable

#: A process at work uses more than this share of one processor.
WORKING = 0.1
MOST = 10
_SHORTEST_S = 0.2


class Progress:
    """The progress of a call; used by several threads."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock = clock
        self._used = used
        self._lock = threading.Lock()
        self._exchanges = 0
        self.begin()

    def begin(self) -> None:
        """Begin a call."""
        with self._lock:
            self._exchanges = 0
            self._note()

    def moved(self, exchanges: int = 0) -> None:
        """Note progress; so many more `exchanges` are under way."""
        with self._lock:
            self._exchanges += exchanges
            self._note()

    def stands_still(self, patience: float) -> bool:
        """Whether there was neither computation nor exchange for `patience` seconds."""
        with self._lock:
            now, used = self._clock(), self._used()
            since = now - self._looked
            if since >= _SHORTEST_S:
                if used - self._used_then > WORKING * since:
                    self._worked = now
                self._looked, self._used_then = now, used
            idle, quiet = now - self._worked, now - self._moved
            late = idle > patience or quiet > MOST * patience
            return late and not self._exchanges

    def _note(self) -> None:
        self._moved = self._worked = self._looked = self._clock()
        self._used_then = self._used()
