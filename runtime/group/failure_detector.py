"""The failure detector: heartbeats, and the peers that stopped sending them.

Among few members each watches all others. Among many each watches its two neighbours,
and a member that finds one silent tells all. Once a member is lost, each watches all
remaining ones, since operations in doubt wait for every one of them.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from pcp.errors import RuntimeFault
from pcp.runtime.group.peer_health import Health
from pcp.runtime.transport.event_loop import Loop, Timer
from pcp.runtime.transport.frame import Frame, Kind
from pcp.runtime.transport.link import Link
from pcp.wire import FEW_MEMBERS


@dataclass(frozen=True)
class HeartbeatOptions:
    """The times of the failure detector, in seconds."""

    interval: float = 0.5
    """A link that sent no frame for so long sends a PING."""
    silence: float = 10.0
    """A peer that sent no byte for so long is lost, although its kernel lives."""


class MonitoredGroup(Protocol):
    """The group whose links the failure detector watches."""

    loop: Loop
    rank: int
    links: dict[int, Link]
    health: Health

    @property
    def fault(self) -> RuntimeFault | None:
        """The fault that finished the group; None while it works."""
        ...

    def silent(self, rank: int, seconds: float) -> None:
        """Declare a member lost that was silent for too long."""
        ...


class FailureDetector:
    """Sends heartbeats, and finds silent peers. All of it in the loop's thread."""

    def __init__(self, group: MonitoredGroup, heartbeat: HeartbeatOptions) -> None:
        self._group = group
        self._options = heartbeat
        self._timer: Timer | None = None
        self._watched: dict[int, float] = {}
        """Since when the peers are watched."""

    def start(self) -> None:
        """Begin heartbeats; harmless if they have begun."""
        if self._timer is None:
            self._beat()

    def stop(self) -> None:
        """End heartbeats."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        group, heartbeat, now = self._group, self._options, time.monotonic()
        asleep = group.loop.suspended
        near = watched(group.rank, group.links, alarmed=group.fault is not None)
        self._watched = {rank: self._watched.get(rank, now) for rank in near}
        for rank, link in list(group.links.items()):
            watch = rank in self._watched
            group.health.beat(rank, link, heartbeat.interval, ask=watch)
            if not watch:
                continue
            if now - link.last_sent >= heartbeat.interval:
                link.send(Frame(Kind.PING))
            heard = max(link.last_heard, self._watched[rank])
            if asleep:
                link.last_heard = max(link.last_heard, now - heartbeat.interval)
            elif now - heard > heartbeat.silence:
                group.silent(rank, heartbeat.silence)
        self._timer = group.loop.later(heartbeat.interval / 2, self._beat)


def watched(rank: int, peers: Collection[int], *, alarmed: bool) -> set[int]:
    """The peers that this rank watches, of those that are left."""
    if alarmed or len(peers) < FEW_MEMBERS:
        return set(peers)
    below = max((peer for peer in peers if peer < rank), default=max(peers))
    above = min((peer for peer in peers if peer > rank), default=min(peers))
    return {below, above}
