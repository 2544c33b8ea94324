"""A simulated run: the shepherd's state machine is real, workers and network modelled.

`TrainingRun` runs with its rounds, leases, ledger, quorum and recovery, on a virtual
clock, against workers of which only the times are modelled:

    inner steps    steps x seconds a step, spread over workers, noisy in time
    exchange       the schedule of a run (`pcp.training.simulate.network_model`); the
                   workers say how far they are, and the shepherd orders; once a
                   round or in every step, after the inner steps or beside them
    joining        a state's bytes over the bandwidth, and two round trips
    deaths         exponential, at a rate a worker; a new process comes after
                   a pause; a machine that falls silent is noticed by heartbeats

No step is computed and no byte sent, so thousands of workers fit in one process.
"""

import hashlib
import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from statistics import median
from typing import Any

from pcp.errors import StateMismatch
from pcp.training.config.experiment import Experiment
from pcp.training.coordinator.effects import (
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
from pcp.training.coordinator.roster import Roster
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.data.dataset import tokens_of_sample
from pcp.training.data.lease_pool import size
from pcp.training.shepherd.artifacts import Artifacts
from pcp.training.simulate.network_model import World
from pcp.training.storage.ledger_state import LedgerReplay
from pcp.training.storage.round_record import Round
from pcp.training.trainer.bundle_checks import data_inputs
from pcp.training.wire.message import (
    VERSION,
    Message,
)
from pcp.training.wire.messages import (
    Commit,
    Computed,
    Hello,
    Prepared,
    Ready,
    Restore,
    RoundStart,
)
from pcp.wire import Distance

_JITTER_FLOOR = 0.2
_TICK_SECONDS, _TICK_SECONDS_OF_WORKER = 0.02, 5e-5
"""Seconds between two ticks of a round under way, and for each worker: a tick looks at
all of them, and takes a shepherd so long."""
_TOGETHER = 1e-4
"""Events within so many seconds are of one moment."""


class ModelledConnection:
    """A worker's connection, as long as it lives."""

    here = "127.0.0.1"

    def __init__(self, worker: "ModelledWorker") -> None:
        self._worker, self._life = worker, worker.life

    @property
    def lives(self) -> bool:
        """Whether the worker at the other end is still the one that dialled."""
        return self._worker.alive and self._worker.life == self._life

    def deliver(self, message: Message) -> None:
        """A message has arrived."""
        if self.lives:
            self._worker.receive(message)


class ModelledNetwork:
    """Modelled workers and a network around a run; `now` is its time in seconds."""

    def __init__(self, world: World, seed: int, idle: float) -> None:
        self.world, self._idle = world, idle
        self.rng = random.Random(seed)
        self.now = 0.0
        self.deaths = 0
        self.sample_tokens = 1
        """The tokens of a sample of the program."""
        self.groups: dict[int, ModelledGroup] = {}
        self._numbers, self._heard = count(), -math.inf
        self._ticked = -math.inf
        self._pause = max(_TICK_SECONDS, world.workers * _TICK_SECONDS_OF_WORKER)
        self._queue: list[tuple[float, int, Callable[[], Event | None]]] = []
        for index in range(world.workers):
            factor = max(_JITTER_FLOOR, self.rng.gauss(1.0, world.spread))
            ModelledWorker(self, index, factor).start(0.0)

    def after(self, seconds: float, act: Callable[[], Event | None]) -> None:
        """Call `act` in so many seconds; it returns an event of the run or None."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), act))

    def tell(self, event: Event) -> None:
        """Give an event to the run, half a round trip from now."""
        self.after(self.world.round_trip / 2, lambda: event)

    def happened(
        self, run: TrainingRun, event: Event, program: Program
    ) -> Iterator[Round]:
        """Model the effects of an event; the rounds that were committed.

        Messages arrive after half a round trip, programs at once. Other effects are not
        modelled: nothing is written to a disk.
        """
        late, answer = self.world.round_trip / 2, None
        for effect in run.step(event, self.now):
            match effect:
                case Send(connection=ModelledConnection() as wire, message=message):
                    self.after(late, partial(wire.deliver, message))
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
        if answer is not None:
            yield from self.happened(run, answer, program)
        if isinstance(answer, Proved):  # the next round begins at once
            yield from self.happened(run, Tick(), program)

    def moment(self, run: TrainingRun) -> Iterator[Event]:
        """Events until none more comes for a moment, and then a tick.

        Time passes until the next event, at most for an idle moment. While a round is
        under way ticks have a pause between them.
        """
        roster = run.state.roster
        until, happened = self.now + self._idle, False
        while self._queue and self._queue[0][0] <= until:
            at, _, act = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            self._hear(roster)
            if (event := act()) is not None:
                yield event
                until, happened = self.now + _TOGETHER, True
        if not happened:
            self.now = until
            self._hear(roster)
        busy = run.rounds is not None and run.rounds.attempt is not None
        if not busy or self.now - self._ticked >= self._pause:
            self._ticked = self.now
            yield Tick()

    def group(self, order: RoundStart) -> "ModelledGroup":
        """The members of an attempt."""
        if order.epoch not in self.groups or (
            self.groups[order.epoch].round != order.round
        ):
            self.groups = {e: g for e, g in self.groups.items() if e > order.epoch - 8}
            self.groups[order.epoch] = ModelledGroup(order.round, set(order.members))
        return self.groups[order.epoch]

    def _hear(self, roster: Roster) -> None:
        """Heartbeats of all live workers, once in an idle moment."""
        if self.now - self._heard < self._idle:
            return
        self._heard = self.now
        for member in roster:
            if (
                isinstance(member.connection, ModelledConnection)
                and member.connection.lives
            ):
                member.seen = self.now


@dataclass
class ModelledGroup:
    """The members of an attempt, with those that have done their inner steps."""

    round: int
    waited_for: set[str]
    done: list["ModelledWorker"] = field(default_factory=list)

    @cached_property
    def whole(self) -> bool:
        """Whether all members live at the end of their exchange; else it never ends."""
        return all(member.alive for member in self.done)


class ModelledWorker:
    """A place for a worker; each of its lives is another worker to the shepherd."""

    def __init__(self, model: ModelledNetwork, index: int, factor: float) -> None:
        self._model, self._index, self._factor = model, index, factor
        self.life = 0
        self.name, self.alive = "", False

    def start(self, pause: float) -> None:
        """Start a worker after `pause` seconds."""
        self.life += 1
        self.name = f"worker-{self._index}-{self.life}"
        self.wire = ModelledConnection(self)
        self._order: RoundStart | None = None
        self._committed: int | None = None
        self._begun: tuple[int, Any] | None = None
        """The round and the lease of the newest inner steps."""
        self._done = False
        self._model.after(pause, self._hello)

    def receive(self, message: Message) -> None:
        """A message of the shepherd has arrived."""
        if isinstance(message, Restore):
            pause = self._model.world.joining_seconds() if message.source else 0.0
            self._later(pause, lambda: self._restored(message.round))
        elif isinstance(message, Commit):
            self._committed, self._begun, self._done = message.round, None, False
        elif isinstance(message, RoundStart):
            self._take(message)

    def _take(self, order: RoundStart) -> None:
        """Begin the inner steps of an order, unless they are made or under way."""
        self._order = order
        self._model.group(order)
        wanted = (order.round, order.lease)
        if self._begun == wanted:
            if self._done:
                self._computed()
            return
        self._begun, self._done = wanted, False
        world, rng = self._model.world, self._model.rng
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
        group = self._model.group(order)
        if self.name in group.waited_for:
            group.waited_for.discard(self.name)
            group.done.append(self)
            if not group.waited_for:
                far = Distance(*(order.distance or (0.0,)))
                seconds = self._model.world.waited_seconds(
                    len(group.done), order.steps, self._seconds, far
                )
                for member in group.done:
                    member._later(seconds, lambda m=member: m._prepared(order, seconds))

    def _prepared(self, order: RoundStart, seconds: float) -> None:
        if self._order is None or self._order.epoch != order.epoch:
            return
        group = self._model.group(order)
        if not group.whole:
            return
        sent = self._model.world.sent_bytes(len(group.done), order.steps)
        self._tell(
            Prepared(
                round=order.round,
                epoch=order.epoch,
                digest=_digest(order.round),
                loss=0.0,
                loss_first=0.0,
                steps=order.steps,
                tokens=self._model.sample_tokens * size(order.lease),
                bytes_sent=sent,
                bytes_received=sent,
                compute_seconds=self._seconds,
                exchange_seconds=seconds,
                round_trip=self._model.world.round_trip,
            )
        )

    def _hello(self) -> Event:
        self.alive = True
        world = self._model.world
        if math.isfinite(world.lifetime):
            self._later(self._model.rng.expovariate(1 / world.lifetime), self._die)
        hello = Hello(
            version=VERSION,
            worker=self.name,
            target="cpu",
            backend="cpu",
            device="modelled",
            address=self.name,
            round_trip=world.round_trip,
        )
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
        self._tell(Ready(round=reached, digest=_digest(reached)))

    def _tell(self, message: Message) -> None:
        self._model.tell(Received(self.wire, message))

    def _later(self, seconds: float, act: Callable[[], Any]) -> None:
        """Call `act` later, if the worker still lives."""
        life = self.life

        def due() -> Event | None:
            return act() if life == self.life else None

        self._model.after(seconds, due)


@dataclass(frozen=True)
class Figures:
    """The figures of a simulated run. Seconds are virtual ones."""

    workers: int
    rounds: int
    seconds: float
    """Seconds from the first round's start to the last commit."""
    round_seconds: float
    """The median of a round's seconds."""
    sent_bytes: int
    """The bytes that a worker sends in a round."""
    goodput: float
    """The share of committed inner steps in those that workers could have made."""
    deaths: int


def simulate(
    experiment: Experiment,
    bundle: bytes,
    world: World,
    rounds: int,
    seed: int = 0,
    *,
    told: Callable[[Round], None] = lambda _: None,
) -> Figures:
    """Run `rounds` rounds of an experiment in a modelled world.

    `bundle` has the model's shapes; `told` gets each round that is committed.
    `StateMismatch` when the run commits no more rounds.
    """
    steps = rounds * world.workers * experiment.tau
    run = experiment.model_copy(
        update={
            "outer_loop_steps": rounds + 1,
            "checkpoint_every": rounds + 2,
            "max_epochs": experiment.max_epochs + steps * 1000,
            "validation_fraction": 0.0,
            # There is no socket: live workers send heartbeats once in an idle moment.
            "heartbeat_seconds": experiment.heartbeat_limit_seconds / 3,
        }
    )
    model = ModelledNetwork(world, seed, idle=run.heartbeat_limit_seconds / 3)
    state = RunState(
        run,
        LedgerReplay(),
        name="modelled",
        folder="modelled",
        serves="127.0.0.1:0",
        wanted=world.workers,
        first_values=run.first_values,
    )
    program = Artifacts(lambda target: bundle, run).program("cpu")
    model.sample_tokens = tokens_of_sample(data_inputs(program.manifest))
    return _until(model, TrainingRun(state), program, rounds, told)


def _until(
    model: ModelledNetwork,
    run: TrainingRun,
    program: Program,
    rounds: int,
    told: Callable[[Round], None],
) -> Figures:
    """Step the run until the rounds are done."""
    began, moved, records = None, 0.0, list[Round]()
    limit = model.world.stall_seconds(run.state.experiment.tau)
    while len(records) < rounds:
        for event in model.moment(run):
            for record in model.happened(run, event, program):
                records.append(record)
                told(record)
                moved = model.now
        if began is None and run.rounds is not None and run.rounds.attempt:
            began = model.now
        if model.now - moved > limit:
            raise StateMismatch(
                f"no round was committed for {model.now - moved:.0f} virtual seconds "
                f"after round {len(records)}: workers die faster than a round can be "
                "made; lower tau, or set a quorum"
            )
    return _figures(model, records, began or 0.0)


def _figures(model: ModelledNetwork, records: list[Round], began: float) -> Figures:
    seconds, world = model.now - began, model.world
    made = sum(member.steps for record in records for member in record.members)
    return Figures(
        workers=world.workers,
        rounds=len(records),
        seconds=seconds,
        round_seconds=median(record.seconds for record in records),
        sent_bytes=round(median(record.bytes_sent_per_worker for record in records)),
        goodput=made * world.step_seconds / (world.workers * seconds),
        deaths=model.deaths,
    )


def _digest(round_: int) -> str:
    return hashlib.sha256(str(round_).encode()).hexdigest()
