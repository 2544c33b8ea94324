"""Modelled workers, and a network of times around a run's real state machines.

start ──► Hello ──► Restore ──► Ready ──► RoundStart ──► Computed ──► Prepared
  ▲         ▲                                │   the ranks of an island make their
  │ dies    │ its connection is closed       │   steps together, as the slowest does
  └─────────┴────────────────────────────────┘
"""

import hashlib
import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import count
from typing import Any

from pcp.training.coordinator.effects import (
    Close,
    Compile,
    Fail,
    FindCheckpoint,
    Prove,
    ReportRound,
    Send,
)
from pcp.training.coordinator.events import (
    Compiled,
    Event,
    Found,
    Lost,
    Program,
    Proved,
    Received,
    Tick,
)
from pcp.training.data.lease_pool import size
from pcp.training.simulate.coordinator_meter import CoordinatorMeter
from pcp.training.simulate.network_model import World
from pcp.training.storage.round_record import Round
from pcp.training.wire.message import VERSION, Message
from pcp.training.wire.messages import (
    Commit,
    Computed,
    Heartbeat,
    Hello,
    InnerExchangeReport,
    Prepared,
    Ready,
    Restore,
    RoundStart,
    Welcome,
)
from pcp.wire import Distance

_JITTER_FLOOR = 0.2
"""No worker, and no round of one, is faster than this share of the mean."""
_RECONNECTING = 2
"""Round trips until a worker whose connection was closed says hello again."""
_TICK_SECONDS, _TICK_SECONDS_OF_WORKER = 0.02, 5e-5
"""Seconds between two ticks of a round under way, and for each worker: a tick looks at
all of them, and takes a shepherd so long."""
_TOGETHER = 1e-4
"""Events within so many seconds are of one moment."""
_EPOCHS = 8
"""Groups of older epochs are forgotten."""


class ModelledConnection:
    """A worker's connection, until it is closed or the worker dies."""

    here = "127.0.0.1"

    def __init__(self, worker: "ModelledWorker") -> None:
        self._worker = worker

    @property
    def lives(self) -> bool:
        """Whether the worker at the other end is still the one that dialled."""
        return self._worker.alive and self._worker.wire is self

    def deliver(self, message: Message) -> None:
        """A message has arrived."""
        if self.lives:
            self._worker.receive(message)

    def closed(self) -> None:
        """The other end has closed it: a worker that lives dials again."""
        if self.lives:
            self._worker.dial()

    def beat(self) -> Event:
        """The worker's heartbeat."""
        return Received(self, self._worker.heartbeat())


class ModelledWorker:
    """A place for a worker; each of its lives is another worker to the shepherd."""

    def __init__(self, model: "ModelledNetwork", index: int, factor: float) -> None:
        self._model, self._host, self._index = model, index // model.world.ranks, index
        self.factor = factor
        """Its seconds a step, relative to the mean."""
        self.life = 0
        self.name, self.alive = "", False

    def start(self, pause: float) -> None:
        """Start a worker after `pause` seconds."""
        self.life += 1
        self.name = f"worker-{self._index}-{self.life}"
        self.address = f"host-{self._host}:{self.name}"
        self._place: dict[str, Any] = {}
        self._committed: int | None = None
        self._bundle: str | None = None
        self._connect()
        self._after(pause, self._begin)

    def dial(self) -> None:
        """Connect again, with the state that it holds; its inner steps are lost."""
        self._connect()
        self._after(_RECONNECTING * self._model.world.round_trip, self._hello)

    def _connect(self) -> None:
        self.wire = ModelledConnection(self)
        self._order: RoundStart | None = None
        self._begun: tuple[Any, ...] | None = None
        """The round, the lease and the inner epoch of the newest inner steps."""
        self._done = False
        self._seconds = 0.0

    def receive(self, message: Message) -> None:
        """A message of the shepherd has arrived."""
        if isinstance(message, Welcome):
            self._bundle = message.bundle
            if message.island is not None:
                at = message.coordinate
                self._place = {"island": message.island, "coordinate": at}
        elif isinstance(message, Restore):
            pause = self._model.world.joining_seconds() if message.source else 0.0
            self._after(pause, lambda: self._restored(message.round))
        elif isinstance(message, Commit):
            self._committed, self._begun, self._done = message.round, None, False
        elif isinstance(message, RoundStart):
            self._take(message)

    @property
    def coordinate(self) -> int:
        """Its coordinate in its island."""
        return self._place.get("coordinate", 0)

    def heartbeat(self) -> Heartbeat:
        """A heartbeat, with its order if it has one."""
        order = self._order
        return _ALIVE if order is None else _with_order(order.round, order.epoch)

    def _take(self, order: RoundStart) -> None:
        """Begin the inner steps of an order, unless they are made or under way."""
        self._order = order
        self._model.group(order, self.coordinate)
        wanted = (order.round, order.lease, order.inner_epoch)
        if self._begun == wanted:
            if self._done:
                self._computed()
            return
        self._begun, self._done = wanted, False
        world, rng = self._model.world, self._model.rng
        seconds = order.steps * world.step_seconds * self.factor
        seconds *= max(_JITTER_FLOOR, rng.gauss(1.0, world.jitter))
        seconds += order.steps * world.inside_seconds
        if self._committed != order.round - 1:
            seconds += world.joining_seconds()
            self._restored(order.round - 1)
        self._model.step_together(self, order, seconds)

    def make_steps(self, seconds: float) -> None:
        """Make the inner steps of its order in so many seconds."""
        self._seconds, wanted = seconds, self._begun
        self._after(seconds, lambda: self._stepped(wanted))

    def _stepped(self, wanted: tuple[Any, ...] | None) -> None:
        if self._begun == wanted:
            self._done = True
            self._computed()

    def _computed(self) -> None:
        """Steps are done: tell, and exchange once all others are there too."""
        order = self._order
        if order is None:
            return
        self._tell(Computed(round=order.round, epoch=order.epoch))
        group = self._model.group(order, self.coordinate)
        group.enter(self, self._model.world, order, self._seconds)

    def exchange(self, group: "ModelledGroup", epoch: int, seconds: float) -> None:
        """Take part in an exchange of so many seconds."""
        self._after(seconds, lambda: self._prepared(group, epoch, seconds))

    def _prepared(self, group: "ModelledGroup", epoch: int, seconds: float) -> None:
        order = self._order
        if order is None or order.epoch != epoch or not group.whole:
            return
        world = self._model.world
        sent = world.sent_bytes(len(group.done), order.longest)
        self._tell(
            Prepared(
                round=order.round,
                epoch=order.epoch,
                digest=_digest(order.round, self.coordinate),
                loss=0.0,
                loss_first=0.0,
                steps=order.steps,
                tokens=self._model.sample_tokens * size(order.lease),
                bytes_sent=sent,
                bytes_received=sent,
                compute_seconds=self._seconds,
                exchange_seconds=seconds,
                round_trip=world.round_trip,
            )
        )

    def _begin(self) -> Event:
        self.alive = True
        world, life = self._model.world, self.life
        if math.isfinite(world.lifetime):
            until = self._model.rng.expovariate(1 / world.lifetime)
            self._model.after(until, lambda: self._die() if life == self.life else None)
        return self._hello()

    def _hello(self) -> Event:
        held = self._committed
        state = None if held is None else _digest(held, self.coordinate)
        hello = Hello(
            version=VERSION,
            worker=self.name,
            target="cpu",
            backend="cpu",
            device="modelled",
            address=self.address,
            run=None if held is None else self._model.run,
            bundle=self._bundle,
            committed=held,
            digest=state,
            round_trip=self._model.world.round_trip,
            **self._place,
        )
        self._model.connected(self.wire)
        return Received(self.wire, hello)

    def _die(self) -> None:
        world, wire = self._model.world, self.wire
        self.alive = False
        self._model.deaths += 1
        if self._model.rng.random() >= world.silent:
            self._model.tell(Lost(wire, "died"))
        self.start(world.restart)

    def _restored(self, reached: int) -> None:
        self._committed = reached
        self._tell(Ready(round=reached, digest=_digest(reached, self.coordinate)))

    def _tell(self, message: Message) -> None:
        self._model.tell(Received(self.wire, message))

    def _after(self, seconds: float, act: Callable[[], Any]) -> None:
        """Call `act` later, if the worker still lives and has this connection."""
        wire = self.wire

        def due() -> Event | None:
            return act() if wire is self.wire else None

        self._model.after(seconds, due)


class ModelledNetwork:
    """Modelled workers and a network around a run; `now` is its time in seconds."""

    def __init__(self, world: World, seed: int, idle: float, run: str) -> None:
        """`run` is the run's name; `idle` the seconds between two heartbeats."""
        self.world, self.run, self._idle = world, run, idle
        self.rng = random.Random(seed)
        self.now = 0.0
        self.deaths = 0
        self.sample_tokens = 1
        """The tokens of a sample of the program."""
        self._groups: dict[tuple[int, int], ModelledGroup] = {}
        """The members of attempts, by epoch and coordinate."""
        self._islands: dict[tuple[str, int], list[tuple[ModelledWorker, float]]] = {}
        """Ranks that wait for others of their island, by rank 0 and epoch."""
        self._numbers, self._heard = count(), -math.inf
        self._ticked = -math.inf
        self._pause = max(_TICK_SECONDS, world.workers * _TICK_SECONDS_OF_WORKER)
        self._queue: list[tuple[float, int, Callable[[], Event | None]]] = []
        self._connected: list[ModelledConnection] = []
        self.places: list[ModelledWorker] = []
        for index in range(world.workers * world.ranks):
            factor = max(_JITTER_FLOOR, self.rng.gauss(1.0, world.spread))
            self.places.append(ModelledWorker(self, index, factor))
            self.places[-1].start(0.0)

    def after(self, seconds: float, act: Callable[[], Event | None]) -> None:
        """Call `act` in so many seconds; it returns an event of the run or None."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), act))

    def tell(self, event: Event) -> None:
        """Give an event to the run, half a round trip from now."""
        self.after(self.world.round_trip / 2, lambda: event)

    def connected(self, wire: ModelledConnection) -> None:
        """A worker has said hello: it sends heartbeats from here on."""
        self._connected.append(wire)

    def happened(
        self, run: CoordinatorMeter, event: Event, program: Program
    ) -> Iterator[Round]:
        """Model the effects of an event; the rounds that were committed.

        Messages arrive after half a round trip, programs at once. Other effects are not
        modelled: nothing is written to a disk.
        """
        arrives, answer = list[Callable[[], None]](), None
        for effect in run.step(event, self.now):
            match effect:
                case Send(connection=ModelledConnection() as wire, message=message):
                    arrives.append(partial(wire.deliver, message))
                case Close(connection=ModelledConnection() as wire):
                    arrives.append(wire.closed)
                case Compile(connection=connection):
                    self.after(0.0, partial(Compiled, connection, program))
                case FindCheckpoint():
                    answer = Found(None, ())
                case Prove(round=number, member=member):
                    answer = Proved(number, member)  # the first state is shown
                case ReportRound(record=record):
                    yield record
                case Fail(error=error):
                    raise error
        if arrives:
            self.after(self.world.round_trip / 2, lambda: _all(arrives))
        if answer is not None:
            yield from self.happened(run, answer, program)
        if isinstance(answer, Proved):  # the next round begins at once
            yield from self.happened(run, Tick(), program)

    def moment(self, run: CoordinatorMeter) -> Iterator[Event]:
        """Events until none more comes for a moment, and then a tick.

        Time passes until the next event, at most for an idle moment. While a round is
        under way ticks have a pause between them.
        """
        until, happened = self.now + self._idle, False
        while self._queue and self._queue[0][0] <= until:
            at, _, act = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            if self.now - self._heard >= self._idle:
                yield from self._heartbeats()
            if (event := act()) is not None:
                yield event
                until, happened = self.now + _TOGETHER, True
        if not happened:
            self.now = until
            if self.now - self._heard >= self._idle:
                yield from self._heartbeats()
        if not run.busy or self.now - self._ticked >= self._pause:
            self._ticked = self.now
            yield Tick()

    def _heartbeats(self) -> Iterator[Event]:
        """Heartbeats of all live workers."""
        self._heard = self.now
        self._connected = [wire for wire in self._connected if wire.lives]
        for wire in self._connected:
            yield wire.beat()

    def step_together(
        self, rank: ModelledWorker, order: RoundStart, seconds: float
    ) -> None:
        """A rank begins its inner steps; those of an island take the longest's time."""
        if not order.island:
            rank.make_steps(seconds)
            return
        key = (order.island[0], order.epoch)
        there = self._islands.setdefault(key, [])
        there.append((rank, seconds))
        if len(there) == len(order.island):
            del self._islands[key]
            longest = max(each for _, each in there)
            for one, _ in there:
                one.make_steps(longest)

    def group(self, order: RoundStart, coordinate: int) -> "ModelledGroup":
        """The members of an attempt, or the ranks at a coordinate of them."""
        key = (order.epoch, coordinate)
        if key not in self._groups or self._groups[key].round != order.round:
            least = order.epoch - _EPOCHS
            self._groups = {k: g for k, g in self._groups.items() if k[0] > least}
            self._islands = {k: i for k, i in self._islands.items() if k[1] > least}
            self._groups[key] = ModelledGroup(order.round, set(order.members))
        return self._groups[key]


@dataclass
class ModelledGroup:
    """The members of an attempt, with those that have done their inner steps."""

    round: int
    waited_for: set[str]
    done: list[tuple[ModelledWorker, ModelledConnection]] = field(default_factory=list)

    @cached_property
    def whole(self) -> bool:
        """Whether all members live at the end of their exchange; else it never ends."""
        return all(member.alive and member.wire is wire for member, wire in self.done)

    def enter(
        self, member: ModelledWorker, world: World, order: RoundStart, computed: float
    ) -> None:
        """A member has done its inner steps; the last one begins the exchange."""
        if member.address not in self.waited_for:
            return
        self.waited_for.discard(member.address)
        self.done.append((member, member.wire))
        if self.waited_for:
            return
        far = Distance(*(order.distance or (0.0,)))
        seconds = world.waited_seconds(len(self.done), order.longest, computed, far)
        for each, _ in self.done:
            each.exchange(self, order.epoch, seconds)


_ALIVE = Heartbeat()


@cache
def _with_order(round_: int, epoch: int) -> Heartbeat:
    return Heartbeat(meeting=InnerExchangeReport(round=round_, epoch=epoch, entered=0))


@cache
def _digest(round_: int, coordinate: int) -> str:
    """The digest of a rank's part of a round; nothing is computed."""
    return hashlib.sha256(f"{round_} {coordinate}".encode()).hexdigest()


def _all(acts: Iterable[Callable[[], None]]) -> None:
    for act in acts:
        act()
