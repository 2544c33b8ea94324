"""How a dead peer is told from a quiet one: everybody says at times that it lives."""

import time
from dataclasses import dataclass
from typing import Protocol

from pcp.runtime.group.peer_health import Health
from pcp.runtime.transport.event_loop import Loop, Timer
from pcp.runtime.transport.frame import Frame, Kind
from pcp.runtime.transport.link import Link


@dataclass(frozen=True)
class HeartbeatOptions:
    """The times of it, in seconds."""

    interval: float = 0.5
    """A link that sent nothing for so long sends a PING."""
    silence: float = 10.0
    """A peer that sent nothing for so long is lost, although its kernel lives."""


class MonitoredGroup(Protocol):
    """The group whose members are listened to."""

    loop: Loop
    links: dict[int, Link]
    health: Health

    def silent(self, rank: int, seconds: float) -> None:
        """A member said nothing for too long."""
        ...


class FailureDetector:
    """Says that we live, and notices who does not. All of it in the loop's thread."""

    def __init__(self, group: MonitoredGroup, heartbeat: HeartbeatOptions) -> None:
        self._group = group
        self._options = heartbeat
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to beat; harmless if it does."""
        if self._timer is None:
            self._beat()

    def stop(self) -> None:
        """Beat no more."""
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
