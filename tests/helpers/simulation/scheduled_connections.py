"""Connections of a drawn schedule, which lose what a real transport can lose.

TCP delivers a prefix of what was sent each way, in order, and then the connection is
over: no message is lost between two that are read. So a message is lost in these ways,
and each of them is drawn:

cut         the connection breaks, and with it all that is on its way
lose        one message is sent, and the connection breaks before it is read: nothing
            behind it is read either, what was sent before it and the other way is, and
            each end hears of the break in its own time, maybe a new connection later
unsaid      a worker says it while it has no connection, or between its `Hello` and the
            `Welcome` (`pcp.training.wire.client.ShepherdLink.send`): that one message
            is lost, and the connection goes on

A worker may say a message twice (it answers an order that comes again); the transport
doubles nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from helpers.simulation.run_checks import Violation

from pcp.training.coordinator.events import Lost, Received
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.messages import (
    Heartbeat,
    Hello,
    Stalled,
    Welcome,
)

if TYPE_CHECKING:
    from helpers.simulation.run_schedules import Schedule
    from helpers.simulation.scheduled_workers import Node

DOUBLED = 0.02
"""Share of a worker's messages that come twice."""
TO_WORKER, TO_SHEPHERD = 0, 1


class Wire:
    """A connection between a worker and the shepherd; messages stay in order."""

    here = "10.0.0.1"

    def __init__(self, schedule: "Schedule", node: "Node") -> None:
        self.schedule, self.node = schedule, node
        self.open = True
        self.island: str | None = None
        """Of which the worker is a rank, as the shepherd has it."""
        self._run = schedule.run
        self._last = [0.0, 0.0]
        self._deaf = [False, False]
        """Whether nothing that is sent this way is read any more."""

    def to_worker(self, message: Message) -> None:
        """What the shepherd says; it is lost if the connection breaks before."""
        if isinstance(message, Heartbeat):
            return  # a worker here does nothing by it, and none of them is lost
        if isinstance(message, Welcome):
            self.island = message.island
        elif isinstance(message, Stalled):
            self._check_hangs(message.reason)
        if self.open and not self._loses(TO_WORKER, message):
            self._deliver(TO_WORKER, partial(self.node.receive, self, message))

    def _check_hangs(self, why: str) -> None:
        """Who is ended hangs, or a rank of its island does."""
        nodes = [node for node in self.schedule.nodes.values() if node.alive]
        ranks = [n for n in nodes if n.wire and n.wire.island == self.island]
        ended = [self.node] if self.island is None else ranks
        if not any(node.hung or node.frozen for node in ended):
            raise Violation(f"{self.node.name} is ended and hangs nowhere: {why}")

    def to_shepherd(self, message: Message) -> None:
        """What the worker says; now and then it comes twice."""
        if not self.open or self._loses(TO_SHEPHERD, message):
            return
        event, schedule = Received(self, message), self.schedule
        twice = schedule.random.random() < DOUBLED and not isinstance(message, Hello)
        reads = partial(self._reads, event)
        self._deliver(TO_SHEPHERD, reads)
        if twice:
            self._deliver(TO_SHEPHERD, reads)

    def refuse(self, reason: str) -> None:
        """Close it; whoever is quarantined ends."""
        self.close()
        if "quarantined" in reason:
            self.node.quarantined(reason.partition(" ")[0])

    def close(self) -> None:
        """The shepherd closes it, once what it said is sent."""
        if self.open and not self._deaf[TO_WORKER]:
            self._deliver(TO_WORKER, self._over)

    def cut(self) -> None:
        """It breaks: each end hears of it in its time."""
        if not self.open:
            return
        self.open = False
        self._deliver(TO_SHEPHERD, self._shepherd_hears)
        self._deliver(TO_WORKER, lambda: self.node.lost(self))

    def _reads(self, event: Received) -> None:
        if self.open and self.schedule.run is self._run:
            self.schedule.tell(event)

    def _over(self) -> None:
        self.open = False
        self.node.lost(self)

    def _shepherd_hears(self) -> None:
        self.schedule.tell(Lost(self, "broken"))

    def _loses(self, way: int, message: Message) -> bool:
        """Whether a message is sent and will not be read."""
        if self.node.losing is None and not self._deaf[way]:
            return False
        if not self._deaf[way] and self.node.loses(way, message):
            self.schedule.note("lost", self.node.name, message.kind)
            self._deaf[way] = True
            for end, hears in enumerate(
                (lambda: self.node.lost(self), self._shepherd_hears)
            ):
                # Behind what was sent before; who reads nothing may take long to know.
                pause = self.schedule.random.choice((0.0, 0.0, 0.3, 1.0))
                self.schedule.after(
                    pause, lambda end=end, hears=hears: self._deliver(end, hears)
                )
        if self._deaf[way] and not isinstance(message, Heartbeat):
            self.schedule.lost[message.kind] += 1
        return self._deaf[way]

    def _deliver(self, way: int, act: Callable[[], None]) -> None:
        schedule, last = self.schedule, self._last
        at = schedule.now + schedule.latency()
        if at < last[way]:
            at = last[way]
        else:
            last[way] = at
        schedule.at(at, act)
