"""The failure detector: heartbeats, and the peers that stopped sending them."""

import time
from dataclasses import dataclass
from typing import Protocol

from pcp.runtime.group.peer_health import Health
from pcp.runtime.transport.event_loop import Loop, Timer
from pcp.runtime.transport.frame import Frame, Kind
from pcp.runtime.transport.link import Link


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
    links: dict[int, Link]
    health: Health

    def silent(self, rank: int, seconds: float) -> None:
        """Declare a member lost that was silent for too long."""
        ...


class FailureDetector:
    """Sends heartbeats, and finds silent peers. All of it in the loop's thread."""

    def __init__(self, group: MonitoredGroup, heartbeat: HeartbeatOptions) -> None:
        self._group = group
        self._options = heartbeat
        self._timer: Timer | None = None

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
        for rank, link in list(group.links.items()):
            if now - link.last_sent >= heartbeat.interval:
                link.send(Frame(Kind.PING))
            group.health.beat(rank, link, heartbeat.interval)
            if asleep:
                link.last_heard = max(link.last_heard, now - heartbeat.interval)
            elif now - link.last_heard > heartbeat.silence:
                group.silent(rank, heartbeat.silence)
        self._timer = group.loop.later(heartbeat.interval / 2, self._beat)
