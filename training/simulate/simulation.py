"""A run on paper: the shepherd is real, workers and network are modelled.

The real `Shepherd` runs with its rounds, leases, ledger, quorum and recovery, on a
virtual clock, against workers that only say when they would be done:

    inner steps    steps x seconds a step, spread over workers, noisy in time
    exchange       a ring all-reduce: 2 (M-1)/M bytes over the bandwidth, and
                   2 (M-1) one-way trips; a round trip for each collective, to open
                   it and to vote; once a round or in every step, after the inner
                   steps or beside them
    joining        a state's bytes over the bandwidth, and two round trips
    deaths         exponential, at a rate a worker; a new process comes after
                   a pause; a machine that falls silent is noticed by heartbeats

Nothing is computed and nothing sent, so thousands of workers fit in one process.
"""

import hashlib
import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import count
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pcp.errors import StateMismatch
from pcp.training.config.experiment import Experiment
from pcp.training.coordinator.roster import Roster
from pcp.training.coordinator.shepherd import Shepherd
from pcp.training.observe.metrics import Quiet, Round
from pcp.training.simulate.network_model import World
from pcp.training.storage.run_folder import RunFolder
from pcp.training.wire.messages import (
    VERSION,
    Commit,
    Computed,
    Hello,
    Message,
    Prepared,
    Ready,
    Restore,
    RoundStart,
)
from pcp.training.wire.server import Done, Event, Lost, Received

_JITTER_FLOOR = 0.2


class Wire:
    """A connection that delivers to a modelled worker."""

    def __init__(self, hub: "VirtualHub", worker: "Modelled") -> None:
        self._hub, self._worker, self._life = hub, worker, worker.life
        self.peer, self.here = worker.name, "127.0.0.1"

    def send(self, *contents: Message | bytes) -> None:
        """Deliver messages after half a round trip; blobs are not modelled."""
        late = self._hub.world.round_trip / 2
        for content in contents:
            if isinstance(content, Restore | RoundStart | Commit):
                self._hub.after(late, lambda c=content: self._deliver(c))

    @property
    def lives(self) -> bool:
        """Whether the worker at the other end is still the one that dialled."""
        return self._worker.alive and self._worker.life == self._life

    def _deliver(self, content: Message) -> None:
        if self.lives:
            self._worker.receive(content)

    def refuse(self, reason: str) -> None:
        """What a worker said before it died came too late: it is another one now."""

    def close(self) -> None:
        """Nothing is open."""


class VirtualHub:
    """The shepherd's hub on a virtual clock; `now` is its time in seconds."""

    port = 0

    def __init__(self, world: World, seed: int, idle: float) -> None:
        self.world, self._idle = world, idle
        self.rng = random.Random(seed)
        self.now = 0.0
        self.roster: Roster | None = None
        self.deaths = 0
        self.groups: dict[int, Group] = {}
        self._numbers, self._heard = count(), -math.inf
        self._queue: list[tuple[float, int, Callable[[], Event | None]]] = []
        for index in range(world.workers):
            factor = max(_JITTER_FLOOR, self.rng.gauss(1.0, world.spread))
            Modelled(self, index, factor).start(0.0)

    def clock(self) -> float:
        """The time."""
        return self.now

    def after(self, seconds: float, act: Callable[[], Event | None]) -> None:
        """Act later; what it returns is an event for the shepherd."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), act))

    def tell(self, event: Event) -> None:
        """An event for the shepherd, half a round trip from now."""
        self.after(self.world.round_trip / 2, lambda: event)

    def next(self, timeout: float) -> Event | None:
        """The next event; time passes until then, at most an idle moment."""
        until = self.now + (self._idle if timeout > 1e-3 else timeout)
        while self._queue and self._queue[0][0] <= until:
            at, _, act = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            self._hear()
            if (event := act()) is not None:
                return event
        if timeout > 1e-3:
            self.now = until
            self._hear()
        return None

    def work(self, what: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Done at once: what a shepherd does beside itself is not modelled.

        What `what` raises is the result.
        """
        try:
            result = what()
        except Exception as error:
            result = error
        self.after(0.0, lambda: Done(then, result))

    def close(self) -> None:
        """Nothing is open."""

    def group(self, order: RoundStart) -> "Group":
        """Those who take part in an attempt."""
        if order.epoch not in self.groups or (
            self.groups[order.epoch].round != order.round
        ):
            self.groups = {e: g for e, g in self.groups.items() if e > order.epoch - 8}
            self.groups[order.epoch] = Group(order.round, set(order.members))
        return self.groups[order.epoch]

    def _hear(self) -> None:
        """Heartbeats of all that live, once in an idle moment."""
        if self.now - self._heard < self._idle:
            return
        self._heard = self.now
        for member in self.roster or ():
            wire: Any = member.connection
            if wire.lives:
                member.seen = self.now


@dataclass
class Group:
    """Who of an attempt's members has done the inner steps."""

    round: int
    waited_for: set[str]
    done: list["Modelled"] = field(default_factory=list)

    @cached_property
    def whole(self) -> bool:
        """Whether all of them live when their exchange ends: if not, it never ends."""
        return all(member.alive for member in self.done)


class Modelled:
    """One place for a worker; each life of it is another worker to the shepherd."""

    def __init__(self, hub: VirtualHub, index: int, factor: float) -> None:
        self._hub, self._index, self._factor = hub, index, factor
        self.life = 0
        self.name, self.alive = "", False

    def start(self, pause: float) -> None:
        """Come to life after `pause` seconds."""
        self.life += 1
        self.name = f"worker-{self._index}-{self.life}"
        self.wire = Wire(self._hub, self)
        self._order: RoundStart | None = None
        self._committed: int | None = None
        self._begun: tuple[int, Any] | None = None
        """Round and lease of the inner steps that are made, or were."""
        self._done = False
        self._hub.after(pause, self._hello)

    def receive(self, message: Message) -> None:
        """What the shepherd sent has arrived."""
        if isinstance(message, Restore):
            pause = self._hub.world.joining_seconds() if message.source else 0.0
            self._later(pause, lambda: self._restored(message.round))
        elif isinstance(message, Commit):
            self._committed, self._begun, self._done = message.round, None, False
        elif isinstance(message, RoundStart):
            self._take(message)

    def _take(self, order: RoundStart) -> None:
        """Make the inner steps of an order, if that is not done or under way."""
        self._order = order
        self._hub.group(order)
        wanted = (order.round, order.lease)
        if self._begun == wanted:
            if self._done:
                self._computed()
            return
        self._begun, self._done = wanted, False
        world, rng = self._hub.world, self._hub.rng
        seconds = order.steps * world.step_seconds * self._factor
        seconds *= max(_JITTER_FLOOR, rng.gauss(1.0, world.jitter))
        if self._committed != order.round - 1:
            seconds += world.joining_seconds()
            self._restored(order.round - 1)
        self._seconds = seconds
        self._later(seconds, lambda: self._stepped(wanted))

    def _stepped(self, wanted: tuple[int, Any]) -> None:
        if self._begun == wanted:
            self._done = True
            self._computed()

    def _computed(self) -> None:
        """Steps are done: tell, and exchange once all others are there too."""
        order = self._order
        if order is None:
            return
        self._tell(Computed(round=order.round, epoch=order.epoch))
        group = self._hub.group(order)
        if self.name in group.waited_for:
            group.waited_for.discard(self.name)
            group.done.append(self)
            if not group.waited_for:
                seconds = self._hub.world.waited_seconds(
                    len(group.done), order.steps, self._seconds
                )
                for member in group.done:
                    member._later(seconds, lambda m=member: m._prepared(order, seconds))

    def _prepared(self, order: RoundStart, seconds: float) -> None:
        if self._order is None or self._order.epoch != order.epoch:
            return
        group = self._hub.group(order)
        if not group.whole:
            return
        sent = self._hub.world.sent_bytes(len(group.done), order.steps)
        self._tell(
            Prepared(
                round=order.round,
                epoch=order.epoch,
                digest=_digest(order.round),
                loss=0.0,
                loss_first=0.0,
                steps=order.steps,
                tokens=order.steps,
                bytes_sent=sent,
                bytes_received=sent,
                compute_seconds=self._seconds,
                exchange_seconds=seconds,
            )
        )

    def _hello(self) -> Event:
        self.alive = True
        world = self._hub.world
        if math.isfinite(world.lifetime):
            self._later(self._hub.rng.expovariate(1 / world.lifetime), self._die)
        hello = Hello(
            version=VERSION,
            worker=self.name,
            target="cpu",
            backend="cpu",
            device="modelled",
            address=self.name,
        )
        return Received(self.wire, hello)  # pyright: ignore[reportArgumentType]

    def _die(self) -> None:
        world, wire = self._hub.world, self.wire
        self.alive = False
        self._hub.deaths += 1
        if self._hub.rng.random() >= world.silent:
            lost = Lost(wire, "died")  # pyright: ignore[reportArgumentType]
            self._hub.tell(lost)
        self.start(world.restart)

    def _restored(self, reached: int) -> None:
        self._committed = reached
        self._tell(Ready(round=reached, digest=_digest(reached)))

    def _tell(self, message: Message) -> None:
        event = Received(self.wire, message)  # pyright: ignore[reportArgumentType]
        self._hub.tell(event)

    def _later(self, seconds: float, act: Callable[[], Any]) -> None:
        """Act later, in this life."""
        life = self.life

        def due() -> Event | None:
            return act() if life == self.life else None

        self._hub.after(seconds, due)


@dataclass(frozen=True)
class Figures:
    """What a simulated run shows. Seconds are virtual ones."""

    workers: int
    rounds: int
    seconds: float
    """From the first round's start to the last one's commit."""
    round_seconds: float
    """Median of a round."""
    sent_bytes: int
    """By a worker in a round."""
    goodput: float
    """Committed inner steps, of those that all workers could have made."""
    deaths: int


class _Rounds(Quiet):
    def __init__(self) -> None:
        self.records: list[Round] = []

    def round(self, record: Round) -> None:
        """Keep it."""
        self.records.append(record)


def simulate(
    experiment: Experiment, bundle: bytes, world: World, rounds: int, seed: int = 0
) -> Figures:
    """Run `rounds` rounds of an experiment in a modelled world.

    `bundle` gives the model's shapes; `StateMismatch` when the run stops moving.
    """
    steps = rounds * world.workers * experiment.tau
    run = experiment.model_copy(
        update={
            "outer_loop_steps": rounds + 1,
            "checkpoint_every": rounds + 2,
            "max_epochs": experiment.max_epochs + steps * 1000,
            "validation_fraction": 0.0,
            # Nobody listens: the hub hears all who live once in an idle moment.
            "heartbeat_seconds": experiment.heartbeat_limit_seconds / 3,
        }
    )
    hub = VirtualHub(world, seed, idle=run.heartbeat_limit_seconds / 3)
    seen = _Rounds()
    with TemporaryDirectory(prefix="pcp-simulate-") as folder:
        run = run.model_copy(update={"checkpoint_dir": folder})
        shepherd = Shepherd(
            run,
            RunFolder.create(run, datetime.now()),
            lambda target: bundle,
            seen,
            workers=world.workers,
            clock=hub.clock,
            hub=hub,  # pyright: ignore[reportArgumentType]
        )
        hub.roster = shepherd.roster
        try:
            began = _until(hub, shepherd, seen, rounds, world, run)
        finally:
            shepherd.close()
    return _figures(hub, seen.records, world, began)


def _until(
    hub: VirtualHub,
    shepherd: Shepherd,
    seen: _Rounds,
    rounds: int,
    world: World,
    run: Experiment,
) -> float:
    """Turn the shepherd until the rounds are done; when the first one began."""
    began, moved, reached = None, 0.0, 0
    exchanged = world.waited_seconds(world.workers, run.tau, 0.0)
    patience = 100 * (run.tau * world.step_seconds + world.restart)
    patience += 100 * (exchanged + world.joining_seconds())
    while len(seen.records) < rounds:
        shepherd.turn()
        if began is None and shepherd.rounds.attempt is not None:
            began = hub.now
        if len(seen.records) > reached:
            reached, moved = len(seen.records), hub.now
        if hub.now - moved > patience:
            raise StateMismatch(
                f"no round was committed for {hub.now - moved:.0f} virtual seconds "
                f"after round {reached}: workers die faster than a round can be made; "
                "lower tau, or set a quorum"
            )
    return began or 0.0


def _figures(
    hub: VirtualHub, records: list[Round], world: World, began: float
) -> Figures:
    seconds = hub.now - began
    made = sum(member.steps for record in records for member in record.members)
    return Figures(
        workers=world.workers,
        rounds=len(records),
        seconds=seconds,
        round_seconds=median(record.seconds for record in records),
        sent_bytes=round(median(record.bytes_sent_per_worker for record in records)),
        goodput=made * world.step_seconds / (world.workers * seconds),
        deaths=hub.deaths,
    )


def _digest(round_: int) -> str:
    return hashlib.sha256(str(round_).encode()).hexdigest()
