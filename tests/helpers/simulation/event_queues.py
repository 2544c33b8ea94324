"""Channels and timers of a simulation, served in an order that is drawn from a seed."""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from pcp.runtime.transport.event_loop import Timer

Event = tuple[Callable[[], None], str]


class EventQueues:
    """What is to happen: in order on each channel, and timers in virtual seconds."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._queues: dict[Any, deque[Event]] = {}
        self._timers: list[tuple[float, int, Timer, str]] = []
        self._order = itertools.count()

    def post(self, channel: Any, what: Callable[[], None], owner: str = "") -> None:
        """Do it some time, after what was posted to the channel before."""
        self._queues.setdefault(channel, deque()).append((what, owner or channel[-1]))

    def hurry(self, channel: Any) -> None:
        """Deliver some of what the channel holds, ahead of all others."""
        queue = self._queues.get(channel, deque())
        for _ in range(self.random.randrange(len(queue) + 1)):
            if queue:
                queue.popleft()[0]()

    def lose(self, channel: Any) -> None:
        """Drop some of what was posted to the channel last."""
        queue = self._queues.get(channel, deque())
        for _ in range(self.random.randrange(len(queue) + 1)):
            queue.pop()

    def later(self, owner: str, delay: float, what: Callable[[], None]) -> Timer:
        """Do it at a time, which comes when nothing else is to be done, or before."""
        timer = Timer(self.now + delay, what)
        heapq.heappush(self._timers, (timer.when, next(self._order), timer, owner))
        return timer
