"""Connections and snapshots between simulated processes.

Messages of one connection come in order; what was sent before it broke may be lost, and
each end notices in its own time.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers.simulation.virtual_processes import Bell, Process, World

from pcp.errors import PeerLost, ProtocolError, StateMismatch, Timeout
from pcp.training.shepherd.server import Event, FinishedWork, Lost, Received
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.messages import (
    Refused,
)

if TYPE_CHECKING:
    from helpers.simulation.groups import Group, VirtualEndpoint

LATENCY = (0.001, 0.03)
FOREVER = 1e9
UNANSWERED = 3.0
"""Seconds until who dials a machine that is off gives up."""
SLOW = 0.4
"""Longest time that a message takes, now and then."""


class Network:
    """All that processes reach each other by."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hub: VirtualHub | None = None
        self.endpoints: dict[str, VirtualEndpoint] = {}
        self.groups: dict[tuple[int, tuple[str, ...]], Group] = {}
        self.wires: list[Wire] = []
        self.overheard: Callable[[str, Process], None] = lambda kind, worker: None
        """Called with a message's kind, and the worker that sends or gets it."""
        self._ports = iter(range(1, 1 << 30))

    def latency(self) -> float:
        """Seconds that something takes on its way."""
        draw = self.world.random
        return draw.uniform(0, SLOW) if draw.random() < 0.05 else draw.uniform(*LATENCY)

    def address(self) -> str:
        """A new one."""
        return f"127.0.0.1:{next(self._ports)}"

    def dial(self, *_: Any) -> "Channel":
        """A worker's connection to the shepherd."""
        self.world.sleep(self.latency())
        hub = self.hub
        if hub is None or not hub.process.alive:
            raise PeerLost("no shepherd")
        wire = Wire(self, self.world.thread.process, hub)
        self.wires.append(wire)
        return wire.channel

    def look_for(self, address: str, endpoint: "VirtualEndpoint | None") -> None:
        """`PeerLost` where nobody is; a machine that is off does not say so."""
        if endpoint is not None and endpoint.process.frozen_until >= FOREVER:
            self.world.sleep(UNANSWERED)
        elif endpoint is not None and endpoint.process.alive:
            return
        raise PeerLost(f"nobody is at {address}")

    def fetch(
        self,
        address: str,
        timeout: float = 60.0,
        *,
        silence: float = 10.0,
        only: Any = (),
        **_: Any,
    ) -> tuple[int, dict[str, np.ndarray]]:
        """For `fetch_snapshot`."""
        world = self.world
        world.sleep(self.latency())
        endpoint = self.endpoints.get(address)
        self.look_for(address, endpoint)
        assert endpoint is not None
        if (frozen := endpoint.process.frozen_until - world.now) > 0:
            patience = min(timeout, silence)
            world.sleep(min(frozen, patience))
            if frozen > patience:
                raise Timeout(f"{address} does not answer")
        try:
            revision, arrays = endpoint.provider()
        except StateMismatch as error:
            raise ProtocolError(f"{address} gives no snapshot: {error}") from error
        held = {k: np.array(a) for k, a in arrays.items()}
        world.sleep(self.latency())
        if not endpoint.process.alive:
            raise PeerLost(f"{address} died")
        wanted = tuple(only)
        return revision, {
            k: a for k, a in held.items() if not wanted or k.startswith(wanted)
        }


class Wire:
    """A connection between a worker and a shepherd; it breaks as a whole."""

    def __init__(self, network: Network, worker: Process, hub: "VirtualHub") -> None:
        self.network, self.worker = network, worker
        self.channel, self.connection = Channel(self), Connection(self, hub)
        self._last = {True: 0.0, False: 0.0}
        self.open = True
        worker.at_death.append(self.cut)
        hub.process.at_death.append(self.cut)

    def deliver(self, to_worker: bool, act: Callable[[], object]) -> None:
        """Some time, after what was sent before in this direction."""
        world = self.network.world
        if not self.open:
            return
        at = max(self._last[to_worker], world.now + self.network.latency())
        self._last[to_worker] = at
        world.after(at - world.now, act)

    def cut(self) -> None:
        """It breaks: each end hears of it in its time, and of nothing after that."""
        if not self.open:
            return
        self.open = False
        world = self.network.world
        for end in (self.channel, self.connection):
            world.after(self.network.latency() + world.random.random() * 0.2, end.ends)

    def closed_by(self, worker: bool) -> None:
        """One end closes: the other one reads what was sent, then hears of it."""
        other = self.connection if worker else self.channel
        self.deliver(not worker, other.ends)
        self.open = False


class Channel:
    """For a worker's `pcp.training.wire.channel.Channel`."""

    peer, here, round_trip = "the shepherd", "127.0.0.1", 0.0

    def __init__(self, wire: Wire) -> None:
        self._wire, self._world = wire, wire.network.world
        self._bell, self._inbox = Bell(self._world), deque[Message | bytes]()
        self._over = False

    def send(self, message: Message) -> None:
        """It may be lost, if the connection breaks."""
        self._wire.worker.point()
        if self._over:
            raise PeerLost("the connection is closed")
        connection = self._wire.connection
        self._wire.network.overheard(message.kind, self._wire.worker)
        self._wire.deliver(False, lambda: connection.arrived(message))

    def receive(self, timeout: float) -> Any:
        """The next message."""
        self._wire.worker.point()
        if not self._bell.wait_for(lambda: self._inbox or self._over, timeout):
            raise Timeout("nothing from the shepherd")
        if not self._inbox:
            raise PeerLost("the shepherd closed the connection")
        return self._inbox.popleft()

    def receive_blob(self, length: int, timeout: float) -> Any:
        """The bundle."""
        return self.receive(timeout) if length else b""

    def close(self) -> None:
        """No more of it."""
        if not self._over:
            self._over = True
            self._inbox.clear()
            self._bell.ring()
            self._wire.closed_by(worker=True)

    def arrived(self, content: Message | bytes) -> None:
        """Something came."""
        if not self._over:
            self._inbox.append(content)
            self._bell.ring()

    def ends(self) -> None:
        """The other end is gone; what came before can still be read."""
        self._over = True
        self._bell.ring()


class Connection:
    """For a shepherd's `pcp.training.shepherd.server.Connection`."""

    peer, here = "a worker", "127.0.0.1"

    def __init__(self, wire: Wire, hub: "VirtualHub") -> None:
        self.wire, self._hub, self._over = wire, hub, False

    def send(self, *contents: Message | bytes) -> None:
        """Never blocks; the shepherd may be killed between two of them."""
        for content in contents:
            self._hub.process.point()
            if not self._over:
                kind = "bundle" if isinstance(content, bytes) else content.kind
                self.wire.network.overheard(kind, self.wire.worker)
                self.wire.deliver(True, lambda c=content: self.wire.channel.arrived(c))

    def refuse(self, reason: str) -> None:
        """Say why, then close."""
        self.send(Refused(reason=reason))
        self.close()

    def close(self) -> None:
        """Once what was said is sent."""
        if not self._over:
            self._over = True
            self.wire.closed_by(worker=False)

    def arrived(self, message: Message) -> None:
        """A worker's message came."""
        if not self._over:
            self._hub.add(Received(self, message))  # pyright: ignore[reportArgumentType]

    def ends(self) -> None:
        """The worker is gone."""
        if not self._over:
            self._over = True
            self._hub.add(Lost(self, "its connection broke"))  # pyright: ignore[reportArgumentType]


class VirtualHub:
    """For a shepherd's `pcp.training.shepherd.server.Server`."""

    port = 0

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self.process = network, process
        self._events, self._bell = deque[Event](), Bell(network.world)
        network.hub = self

    def add(self, event: Event) -> None:
        """It happened."""
        self._events.append(event)
        self._bell.ring()

    def next(self, timeout: float) -> Event | None:
        """The next event, or None after a while."""
        self.process.point()
        if not self._events and timeout > 1e-3:
            self._bell.wait_for(lambda: self._events, timeout)
        return self._events.popleft() if self._events else None

    def drop_revoked(self) -> None:
        """There are no certificates here."""

    def work(self, what: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """In a thread of the shepherd's process."""
        world = self._network.world

        def run() -> None:
            world.sleep(self._network.latency())
            try:
                result = what()
            except Exception as error:
                result = error
            world.sleep(self._network.latency())
            self.add(FinishedWork(then, result))

        world.Thread(run).start()

    def close(self) -> None:
        """No new connections; the old ones end once their messages are out."""
        if self._network.hub is self:
            self._network.hub = None
        for wire in self._network.wires:
            if wire.connection._hub is self:
                wire.connection.close()
