"""Workers of a drawn schedule, who keep to the protocol and compute hashes.

What `pcp.training.worker.worker` and `round_runner` do, without threads: one thing at a
time, of which a newer order takes the place of an older one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from helpers.simulation.run_checks import SEED_DIGEST, Violation
from helpers.simulation.scheduled_groups import Group

from pcp.training.coordinator.events import Lost, Received
from pcp.training.wire.messages import (
    VERSION,
    Commit,
    Computed,
    GroupFailed,
    Heartbeat,
    Hello,
    Lacking,
    LeaseGrant,
    Message,
    Prepared,
    Push,
    Ready,
    Refused,
    Restore,
    RoundStart,
    Shutdown,
    Validated,
    Welcome,
)

if TYPE_CHECKING:
    from helpers.simulation.run_schedules import Schedule

STEP_SECONDS = 0.05
BEAT_SECONDS = 0.5
DOUBLED = 0.02
"""Share of a worker's messages that come twice."""


class Wire:
    """A connection between a worker and the shepherd; messages stay in order."""

    here = "10.0.0.1"

    def __init__(self, schedule: "Schedule", node: "Node") -> None:
        self.schedule, self.node = schedule, node
        self.open = True
        self._last = [0.0, 0.0]

    def _deliver(self, way: int, act: Callable[[], None]) -> None:
        schedule = self.schedule
        at = max(self._last[way], schedule.now + schedule.latency())
        self._last[way] = at
        schedule.after(at - schedule.now, act)

    def to_worker(self, message: Message) -> None:
        """What the shepherd says; it is lost if the connection breaks before."""
        if self.open:
            self._deliver(0, lambda: self.node.receive(self, message))

    def to_shepherd(self, message: Message) -> None:
        """What the worker says; now and then it comes twice."""
        if not self.open:
            return
        event, schedule = Received(self, message), self.schedule
        twice = schedule.random.random() < DOUBLED and not isinstance(message, Hello)
        for _ in range(1 + twice):
            self._deliver(1, lambda: self.open and schedule.tell(event))

    def close(self) -> None:
        """The shepherd closes it, once what it said is sent."""
        if self.open:
            self._deliver(0, self._over)

    def _over(self) -> None:
        self.open = False
        self.node.lost(self)

    def cut(self) -> None:
        """It breaks: each end hears of it in its time."""
        if not self.open:
            return
        self.open = False
        schedule = self.schedule
        self._deliver(1, lambda: schedule.tell(Lost(self, "broken")))
        self._deliver(0, lambda: self.node.lost(self))


class Node:
    """One worker's process."""

    def __init__(self, schedule: "Schedule", name: str, address: str) -> None:
        self._schedule, self.name, self.address = schedule, name, address
        self.alive = True
        self.frozen_until = 0.0
        self.wire: Wire | None = None
        self.held: tuple[int, str] | None = None
        """The round of the committed state, and its digest."""
        self.prepared: Prepared | None = None
        self.work: tuple[int, Any, str] | None = None
        """Round and lease of the inner steps that are made, and from which state."""
        self.group: Group | None = None
        self._run: str | None = None
        self._doing = 0
        """Counts what it begins: what was begun before is given up."""
        self._learning = 0
        self._factor = schedule.random.choice((1.0, 1.0, 2.0, 6.0))

    @property
    def frozen(self) -> bool:
        """Whether it does nothing for now."""
        return self._schedule.now < self.frozen_until

    @property
    def gone(self) -> bool:
        """Whether it has ended, one way or the other."""
        return not self.alive

    # Its process.

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do it later, if it lives then."""
        schedule = self._schedule

        def due() -> None:
            if not self.alive:
                return
            if schedule.now < self.frozen_until:
                schedule.after(self.frozen_until - schedule.now, due)
            else:
                act()

        schedule.after(seconds, due)

    def begin(self, seconds: float, act: Callable[[], None]) -> None:
        """Do it later, if nothing else was begun by then."""
        self._doing += 1
        doing = self._doing
        self.after(seconds, lambda: act() if doing == self._doing else None)

    def die(self) -> None:
        """Its process ends; its peers notice."""
        self._schedule.note("dies", self.name)
        self.alive = False
        if self.wire is not None:
            self.wire.cut()
        self._leave()

    def _leave(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            group.without(self)

    # Its connection.

    def connect(self) -> None:
        """Dial, and say what is held."""
        if self.wire is not None and self.wire.open:
            return
        if self._schedule.run is None:
            self.after(0.1 + 0.2 * self._schedule.random.random(), self.connect)
            return
        self.wire = wire = Wire(self._schedule, self)
        held = self.held or (None, None)
        wire.to_shepherd(
            Hello(
                version=VERSION,
                worker=self.name,
                target="cpu",
                backend="cpu",
                device="drawn",
                address=self.address,
                run=self._run,
                bundle="1" * 64 if self._run else None,
                committed=held[0],
                digest=held[1],
                prepared=self.prepared,
            )
        )
        self._beat(wire)

    def _beat(self, wire: Wire) -> None:
        if wire is self.wire and wire.open:
            wire.to_shepherd(Heartbeat())
            self.after(BEAT_SECONDS, lambda: self._beat(wire))

    def lost(self, wire: Wire) -> None:
        """The connection ended; it makes another."""
        if self.alive and wire is self.wire:
            self.wire = None
            self.after(0.1 + 0.2 * self._schedule.random.random(), self.connect)

    def send(self, message: Message) -> None:
        """What is said while there is no connection is lost: a hello says it all."""
        if self.wire is not None:
            self.wire.to_shepherd(message)

    def receive(self, wire: Wire, message: Message) -> None:
        """The shepherd says something."""
        if not self.alive or wire is not self.wire or not wire.open:
            return
        if self.frozen:
            self.after(
                self.frozen_until - self._schedule.now,
                lambda: self.receive(wire, message),
            )
            return
        act = _RECEIVERS.get(type(message))
        if act is not None:
            act(self, message)

    # What it is told.

    def _on_welcome(self, message: Welcome) -> None:
        self._run, done = message.run, self.prepared
        if done and (message.committed, message.digest) == (done.round, done.digest):
            self._hold((done.round, done.digest))

    def _on_restore(self, message: Restore) -> None:
        self._leave()
        self.held = self.prepared = self.work = None
        self._learning += 1
        self.begin(0.05, lambda: self._restored(message))

    def _restored(self, message: Restore) -> None:
        state = self.fetched(message.source) if message.source else (0, SEED_DIGEST)
        if state is None:
            self.begin(0.3, lambda: self.send(Lacking(round=message.round)))
            return
        self._hold(state)
        self._say_ready()

    def fetched(self, source: str) -> tuple[int, str] | None:
        """The state that somebody serves."""
        schedule = self._schedule
        if source.startswith(Wire.here):
            return schedule.served
        node = schedule.nodes[source]
        return node.held if node.alive and not node.frozen else None

    def _on_commit(self, message: Commit) -> None:
        done = self.prepared
        if done is None or done.round != message.round:
            return
        if done.digest != message.digest:
            raise Violation(f"{self.name} prepared another round {done.round}")
        self._hold((message.round, message.digest))
        if message.validate_share is not None:
            said = Validated(round=message.round, loss_sum=1.0, batches=1)
            self.after(0.02, lambda: self.send(said))

    def _on_shutdown(self, message: Shutdown) -> None:
        self.alive = False
        if "drained" in message.reason:  # or there may be too few for a first round
            self._schedule.after(0.5, self._schedule.start_worker)
        if self.wire is not None:
            self.wire.cut()
        self._leave()

    def _on_refused(self, message: Refused) -> None:
        raise Violation(f"{self.name} was refused: {message.reason}")

    def _on_learn(self, order: LeaseGrant) -> None:
        if self.held is None:
            return
        self._learning += 1
        learning, lease = self._learning, list(order.lease)
        seconds = order.steps * STEP_SECONDS * self._factor
        if self.work is not None and self.work[1] == lease:
            self.send(Push(turn=order.turn, seconds=seconds))
            return

        def learned() -> None:
            if learning == self._learning and self.held is not None:
                self.work = (self.held[0] + 1, lease, self.held[1])
                self.send(Push(turn=order.turn, seconds=seconds))

        self.after(seconds, learned)

    def _on_round_start(self, order: RoundStart) -> None:
        if self.held is None:
            return
        if order.round <= self.held[0]:
            self._say_ready()
            return
        done = self.prepared
        if done and (done.round, done.epoch) == (order.round, order.epoch):
            self.send(done)
            return
        self._leave()
        self._doing += 1
        work = self.work
        if order.carried and (work is None or work[1] != list(order.lease)):
            self._fails(order, "the steps on this lease are gone")
            return
        groups = self._schedule.groups
        group = groups.get(order.epoch)
        if group is None:
            group = groups[order.epoch] = Group(self._schedule, order)
        self.group = group
        group.arrives(self, order)

    # A round.

    def take(self, order: RoundStart, state: tuple[int, str]) -> None:
        """Have the group's state, and make the inner steps."""
        held = self.held
        if order.carried:
            self.held = state
        elif held != state:
            self._hold(state)
        if held != state:
            self._say_ready()
        work, lease = self.work, list(order.lease)
        if order.carried or (work and work[:2] == (order.round, lease)):
            self._computed(order)
            return
        seconds = order.steps * STEP_SECONDS * self._factor
        self.begin(seconds, lambda: self._stepped(order, state[1]))

    def _stepped(self, order: RoundStart, base: str) -> None:
        self.work = (order.round, list(order.lease), base)
        self._computed(order)

    def _computed(self, order: RoundStart) -> None:
        self.send(Computed(round=order.round, epoch=order.epoch))
        if self.group is not None:
            self.group.computed(self)

    def propose(self, order: RoundStart, digest: str) -> None:
        """The exchange has happened; it waits for the commit."""
        self.group = None
        self.prepared = done = Prepared(
            round=order.round,
            epoch=order.epoch,
            digest=digest,
            loss=1.0,
            loss_first=1.0,
            steps=order.steps,
            tokens=order.steps,
            bytes_sent=0,
            bytes_received=0,
            compute_seconds=order.steps * STEP_SECONDS * self._factor,
            exchange_seconds=0.01,
        )
        self._schedule.checks.voted(self.name, done)
        self.send(done)

    def fails(self, order: RoundStart, why: str, lost: int | None = None) -> None:
        """Its group can do nothing any more."""
        self.group = None
        self.begin(0.02, lambda: self._fails(order, why, lost))

    def _fails(self, order: RoundStart, why: str, lost: int | None = None) -> None:
        at = {"round": order.round, "epoch": order.epoch}
        self.send(GroupFailed(**at, reason=why, lost=lost))

    def _hold(self, state: tuple[int, str]) -> None:
        self.held, self.prepared, self.work = state, None, None
        self._schedule.checks.holds(self.name, state)

    def _say_ready(self) -> None:
        assert self.held is not None
        self.send(Ready(round=self.held[0], digest=self.held[1]))


_RECEIVERS: dict[type[Message], Callable[[Node, Any], None]] = {
    Welcome: Node._on_welcome,
    Restore: Node._on_restore,
    Commit: Node._on_commit,
    Shutdown: Node._on_shutdown,
    Refused: Node._on_refused,
    LeaseGrant: Node._on_learn,
    RoundStart: Node._on_round_start,
}
