"""Ranks in reserve: processes that have everything loaded, and belong to no world.

A spare has the part of one rank. When that rank is lost it takes its place at once; in
the place of another rank it loads that one's part first, which still saves the start
of a process. Another spare is started behind it.
"""

import time
from collections.abc import Callable
from signal import SIGKILL
from typing import Protocol

from pcp.errors import RuntimeFault
from pcp.serving.member import Log

_LOOK_SECONDS = 1.0
_AGAIN_SECONDS = 10.0
"""After a spare that ended and was not killed, until another one is started."""


class Process(Protocol):
    """A rank's process; `subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; raises after `timeout` seconds."""
        ...


class Spare(Process, Protocol):
    """The process of a rank in reserve."""

    def loaded(self, seconds: float) -> bool:
        """Whether it has loaded its part, which is waited for."""
        ...

    def take(self, rank: int, address: str) -> None:
        """Be this rank, and meet the others at this address; OSError if it is gone."""
        ...


class Spares:
    """`count` spares of the ranks 1 to `size` - 1, which `start` starts.

    Of one thread; `tend` is called now and then.
    """

    def __init__(
        self, count: int, size: int, start: Callable[[int], Spare], log: Log
    ) -> None:
        self.count, self._size, self._start, self._log = count, size, start, log
        self._waiting: list[tuple[int, Spare]] = []
        self._next_look = 0.0

    def tend(self, now: bool = False) -> None:
        """Start what is missing; with `now` also within a second of the last look."""
        if not now and time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        ended = [pair for pair in self._waiting if pair[1].poll() is not None]
        for pair in ended:
            self._waiting.remove(pair)
            code = pair[1].poll()
            self._log(f"a spare of rank {pair[0]} ended with code {code}")
        if any(spare.poll() != -SIGKILL for _, spare in ended):
            self._next_look += _AGAIN_SECONDS
            return
        while len(self._waiting) < self.count:
            rank = self._fewest()
            self._waiting.append((rank, self._start(rank)))

    def until_loaded(self, seconds: float) -> None:
        """Wait until all have loaded their parts; `RuntimeFault` if one does not."""
        until = time.monotonic() + seconds
        for rank, spare in self._waiting:
            if not spare.loaded(max(until - time.monotonic(), 0.0)):
                raise RuntimeFault(
                    f"a process for rank {rank} did not load its part of the weights "
                    f"within {seconds:.0f} s (its code: {spare.poll()})"
                )

    def _fewest(self) -> int:
        """The rank with the fewest spares."""
        here = [rank for rank, _ in self._waiting]
        return min(range(1, self._size), key=here.count)

    def take(self, rank: int, address: str) -> Process | None:
        """A spare that takes a rank's place now: one of that rank, or any."""
        order = sorted(self._waiting, key=lambda pair: pair[0] != rank)
        for pair in order:
            self._waiting.remove(pair)
            try:
                pair[1].take(rank, address)
            except OSError:
                pair[1].wait()
                continue
            self._log(f"a spare of rank {pair[0]} takes the place of rank {rank}")
            return pair[1]
        return None

    @property
    def pids(self) -> list[int]:
        """Of those in reserve."""
        return [spare.pid for _, spare in self._waiting]

    def close(self) -> None:
        """End them."""
        for _, spare in self._waiting:
            spare.kill()
            spare.wait()
        self._waiting.clear()
