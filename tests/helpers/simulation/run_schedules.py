"""A training run's state machine in virtual time, under drawn schedules of faults.

`TrainingRun` is the real one. Around it are a disk that is a list, a network that is a
heap, and workers that do no more than keep to the protocol (`scheduled_workers`): what
is trained is a hash of all that led to it. The shepherd is killed between two effects,
or frozen; workers die, freeze, lose their connection, come anew; messages are late,
doubled or lost, as a transport can lose them (`scheduled_connections`). All of it
follows from a seed. Then the run must complete, and `Checks` must have found nothing
wrong.
"""

import gc
import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from itertools import count
from typing import Any

from helpers.simulation import hashed_trainer
from helpers.simulation.run_checks import Checks, Violation
from helpers.simulation.schedule_faults import FAULT_SECONDS, plan
from helpers.simulation.scheduled_groups import GIVEN_UP_SECONDS, Group
from helpers.simulation.scheduled_islands import StepsInside, devices, drawn_islands
from helpers.simulation.scheduled_workers import Node

from pcp.bundle import Bundle
from pcp.training.config.experiment_file import parse
from pcp.training.coordinator import effects as do
from pcp.training.coordinator.events import (
    Compiled,
    Event,
    Found,
    Gathered,
    NotSaved,
    OnDisk,
    Opened,
    Program,
    Proved,
    Recalled,
    Received,
    SavedState,
    Tick,
    Written,
)
from pcp.training.coordinator.islands import Islands
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.storage.ledger_state import replayed
from pcp.training.wire.messages import Heartbeat
from pcp.training_plan import (
    Asynchronous,
    EveryRound,
    EveryStep,
    Fragments,
    Never,
    TrainingPlan,
)

NAME = "drawn"
IDLE_SECONDS = 0.35
MOMENT_SECONDS = 0.05
"""A tick is behind all events of a moment, as in `pcp.training.shepherd.shepherd`."""
PATIENCE_SECONDS = 150.0
"""After the last fault: who hangs as it validates may be ended twice, in a minute."""
ADOPT_SECONDS = 10.0
"""A member that has yet to hear of the commit is asked again for so long, as it is by
`pcp.training.shepherd.checkpointer`."""
KEPT_ROUNDS = 1
"""So that a run goes back further than to what is in memory."""

POLICIES: dict[str, TrainingPlan] = {
    "together": EveryRound(),
    "alone": Never(),
    "own clocks": Asynchronous(),
    "every step": EveryStep(),
    "fragments": Fragments(count=2),
}
"""How rounds are made, by name: when members exchange, and with whom."""


@cache
def program(policy: str) -> Program:
    """What the workers are given for one of `POLICIES`."""
    manifest = Bundle.from_bytes(hashed_trainer.program(), source="drawn").manifest
    # No function of it is called: it needs none of those that the plan names.
    manifest = manifest.model_copy(update={"training": POLICIES[policy]})
    return Program(
        digest="1" * 64,
        size=1,
        manifest=manifest,
        parameters="2" * 64,
        data="3" * 64,
        samples=400,
        batch=4,
    )


@cache
def experiment() -> Any:
    """The keys that no seed draws."""
    return parse(
        {
            "model_path": "none.mlir",
            "data_path": "none",
            "learning_rate": 0.1,
            "tau": 2,
            "outer_loop_steps": 3,
            "max_epochs": 10,
            "validation_fraction": 0.05,
            "heartbeat_limit_seconds": 1.5,
            "heartbeat_seconds": 0.7,
        }
    )


class Schedule:
    """One run; everything follows from the seed and the policy of its rounds."""

    def __init__(self, seed: int, policy: str = "together", *ranks: int) -> None:
        """`ranks` are those of an island; given again, of islands of another shape."""
        self.seed, self.policy, self.plan = seed, policy, POLICIES[policy]
        self.sizes = ranks or (1,)
        """By shape, the ranks of an island."""
        self.random = draw = random.Random(seed)
        self.now = 0.0
        self.workers = draw.choice((1, 2, 2, 3, 3, 4))
        self.given_up_seconds = draw.choice(GIVEN_UP_SECONDS)
        self.experiment = experiment().model_copy(update=self._keys())
        self.nodes: dict[str, Node] = {}
        """All workers that ever lived, by address."""
        self.groups: dict[tuple[int, int, int], Group] = {}
        """By epoch, round and coordinate."""
        self.broken: set[tuple[int, int]] = set()
        """Epochs and coordinates of groups that exchange nothing any more."""
        self.steps_inside: dict[tuple[Any, ...], StepsInside] = {}
        self.saved: dict[int, tuple[list[str], int]] = {}
        """Checkpoints: the digests, and how many members saved it."""
        self.run: TrainingRun | None = None
        self.ended: float | None = None
        """When the run was complete."""
        self.checks = Checks(self.experiment, self.sizes)
        self.spoilt: set[str] = set()
        """Members of which a part was not finite."""
        self.frozen_until = 0.0
        """Until then the shepherd's process does nothing."""
        self.points: int | None = None
        """So many effects are carried out until the shepherd is killed."""
        self.resumed: list[int] = []
        """Exchanges that a group's members had made of a round; -1: unequal numbers."""
        self._queue: list[tuple[float, int, Callable[[], object]]] = [
            (math.inf, -1, lambda: None)
        ]
        self._numbers, self._lives = count(), 0
        self._tick_at = math.inf
        """When time is told to the shepherd next."""
        self.trace: list[str] | None = None
        self.unhung = 0
        """Workers that hung, and ended when they were told so."""
        self.lost: Counter[str] = Counter()
        """Messages that were sent and never read, or said to no connection; by kind."""

    def _keys(self) -> dict[str, Any]:
        draw = self.random
        late = self.policy == "together" and draw.random() < 0.3
        quorum = draw.randint(1, self.workers) if late or draw.random() < 0.4 else None
        return {
            "outer_loop_steps": draw.randint(2, 4),
            "checkpoint_every": draw.choice((1, 2, 100)),
            "rejoin_rounds": draw.choice((0, 1)),
            "validate_every": draw.choice((0, 0, 1)),
            "quorum": quorum,
            "grace_seconds": draw.choice((0.02, 0.2)),
            "round_deadline_seconds": draw.choice((None, None, 0.3)),
            "late": "next" if late else "drop",
            "uneven_steps": draw.random() < 0.2,
            "workers": self.workers,
        } | drawn_islands(self.random, self.sizes, self.workers)

    # The world.

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Do it later."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), act))

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Do it at that time."""
        heapq.heappush(self._queue, (when, next(self._numbers), act))

    def latency(self) -> float:
        """Seconds that a message takes on its way."""
        draw = self.random.random
        return draw() * 0.02 if draw() < 0.93 else draw() * 0.6

    def go(self) -> "Schedule":
        """To the end; `Violation` says what went wrong."""
        self._open()
        for _ in range(devices(self.experiment, self.sizes)):
            self.after(0.2 * self.random.random(), self.start_worker)
        plan(self)
        queue, pop, until = self._queue, heapq.heappop, FAULT_SECONDS + PATIENCE_SECONDS
        while self.now <= until and (self.ended is None or self._living()):
            if queue[0][0] <= self._tick_at:
                self.now, _, act = pop(queue)
                act()
            else:
                self.now = self._tick_at
                self._tick()
        if self.ended is None:
            raise Violation(f"the run stands still: {self._where()}")
        return self

    def _living(self) -> bool:
        return any(node.alive and not node.hung for node in self.nodes.values())

    def _where(self) -> str:
        status = self.run.status() if self.run else None
        nodes = [(n.name, n.held, n.alive) for n in self.nodes.values() if n.alive]
        return f"{status} {nodes}"

    def happens(self, what: str, node: Node) -> None:
        """A rank has "reduced", "prepared" or "committed"; who strikes then, can."""

    def note(self, *what: Any) -> None:
        """For who looks at what happened."""
        if self.trace is not None:
            self.trace.append(f"{self.now:7.3f} {' '.join(map(str, what))}")

    # The shepherd's process.

    def _open(self) -> None:
        """A process starts, and reads what the disk has."""
        replay = replayed(self.checks.records)
        replay.kept = KEPT_ROUNDS
        state = RunState(
            self.experiment,
            replay,
            name=NAME,
            folder=NAME,
            serves="10.0.0.1:1",
            now=self.now,
        )
        self.run = TrainingRun(state)
        self.islands = Islands(self.run, self.sizes, self.experiment.wanted)
        self.served: tuple[int, list[str]] | None = None
        self._found: tuple[int, list[str]] | None = None
        self.happened(Opened())
        if self.run is not None:
            self._tick_at = min(self._tick_at, self.now + IDLE_SECONDS)

    def kill_shepherd(self) -> None:
        """Its process is gone, and comes again."""
        if self.run is None:
            return
        self.note("the shepherd is killed")
        self.run.status()
        self.run, self.points, self.served = None, None, None
        self._tick_at = math.inf
        for node in list(self.nodes.values()):
            if node.wire is not None:
                node.wire.cut()
        self.after(0.1 + self.random.random(), self._open)

    def tell(self, event: Event) -> None:
        """Something happens to the shepherd, and is looked at soon."""
        run = self.run
        if run is None:
            return
        if self.now < self.frozen_until:
            pause = self.frozen_until - self.now
            self.after(pause, lambda: self.run is run and self.tell(event))
            return
        self.happened(event)
        if self.run is not None and not _only_lives(event):
            self._tick_at = min(self._tick_at, self.now + MOMENT_SECONDS)

    def _tick(self) -> None:
        if self.now < self.frozen_until:
            self._tick_at = self.frozen_until  # not a rounding before it
            return
        self._tick_at = self.now + IDLE_SECONDS
        self.happened(Tick())
        run = self.run
        if run is not None and run.outcome is not None and self.ended is None:
            self.ended = self.now
            self.checks.ended(run)
            run.status()

    def happened(self, event: Event) -> None:
        """As the real shell does it; but a process may die between two effects."""
        events = [event]
        for each in events:
            for effect in self.islands.step(each, self.now):
                if self.points is not None:
                    self.points -= 1
                    if self.points < 0:
                        self.kill_shepherd()
                        return
                kind = type(effect)
                if check := self.checks.of.get(kind):
                    check(effect)
                if perform := _PERFORMERS.get(kind):
                    answer = perform(self, effect)
                    if answer is not None:
                        events.append(answer)

    def _append(self, effect: do.Append) -> None:
        if self.trace is not None:
            self.note("ledger", effect.kind, dict(effect.fields))

    def _send(self, effect: do.Send) -> None:
        wire: Any = effect.connection
        if self.trace is not None and effect.message.kind not in ("heartbeat",):
            self.note("to", wire.node.name, str(effect.message)[:150])
        wire.to_worker(effect.message)

    def _log(self, effect: do.Log) -> None:
        self.note("log", effect.text)

    def _close(self, effect: do.Close) -> None:
        wire: Any = effect.connection
        wire.close()

    def _compile(self, effect: do.Compile) -> None:
        made = Compiled(effect.connection, program(self.policy))
        run, pause = self.run, self.latency()
        self.after(pause, lambda: self.run is run and self.tell(made))

    def _gather(self, effect: do.Gather) -> None:
        self._fetch(effect, Gathered(effect.round, effect.members, ()), NotSaved)

    def _prove(self, effect: do.Prove) -> None:
        said = effect.round, effect.member
        self._fetch(effect, Proved(*said), partial(Proved, *said))

    def _fetch(self, effect: Any, shown: Event, fault: Callable[..., Event]) -> None:
        run, parts = self.run, self.checks.parts[effect.round]
        asked = [self.nodes[address] for address in effect.addresses]
        shapes = effect.shapes or [0] * (len(asked) // self.sizes[0])
        wanted = [(effect.round, part) for part in self.checks.dealt(parts, shapes)]
        until = self.now + ADOPT_SECONDS

        def fetched() -> None:
            if self.run is not run:
                return
            there = all(node.alive and not node.frozen for node in asked)
            lacks = [node for node in asked if node.held not in wanted]
            if there and [node.held for node in asked] == wanted:
                self.tell(shown)
            elif there and self.now < until and any(map(behind, lacks)):
                self.after(0.02 + self.latency(), fetched)
            elif there and lacks:
                self.tell(fault("it holds another round", lacks[0].address))
            else:
                self.tell(fault("a member is gone"))

        def behind(node: Node) -> bool:
            return node.held is not None and node.held[0] < effect.round

        self.after(self.latency(), fetched)

    def _write(self, effect: do.Write) -> None:
        run, digest = self.run, self.checks.parts[effect.round]

        def written() -> None:
            if self.run is run:
                self.saved[effect.round] = (digest, len(effect.members))
                path = f"drawn/round_{effect.round}"
                self.tell(Written(effect.round, effect.members, path))

        self.after(self.latency(), written)

    def _look(self, effect: do.LookOnDisk) -> OnDisk:
        there = self._valid(effect.round)
        return OnDisk(effect.round, "drawn/saved" if there else None, ())

    def _find(self, effect: do.FindCheckpoint) -> Found:
        rounds = [r for r in self.saved if r <= effect.at_most and self._valid(r)]
        if not rounds:
            return Found(None, ())
        digest, members = self.saved[max(rounds)]
        self._found = (max(rounds), digest)
        return Found(SavedState(max(rounds), members), ())

    def _valid(self, round_: int) -> bool:
        saved = self.saved.get(round_)
        return saved is not None and saved[0] == self.checks.parts.get(round_)

    def _serve(self, effect: do.Serve) -> None:
        if self._found is not None:
            self.served, self._found = self._found, None
        assert self.served is not None
        assert self.served[0] == effect.round

    def _stop_serving(self, effect: do.StopServing) -> None:
        self.served = None

    def _recall(self, effect: do.Recall) -> Recalled:
        whole = replayed(self.checks.records).progress.history
        return Recalled(effect.event, whole)

    def start_worker(self, name: str | None = None) -> None:
        """A process of a worker, at an address of its own."""
        self._lives += 1
        node = Node(self, name or f"w{self._lives}", f"10.0.0.2:{self._lives}")
        self.nodes[node.address] = node
        node.connect()


_PERFORMERS: dict[type, Callable[[Schedule, Any], Event | None]] = {
    do.Append: Schedule._append,
    do.Send: Schedule._send,
    do.Log: Schedule._log,
    do.Refuse: lambda _, effect: effect.connection.refuse(effect.reason),
    do.Close: Schedule._close,
    do.Compile: Schedule._compile,
    do.Gather: Schedule._gather,
    do.Prove: Schedule._prove,
    do.Write: Schedule._write,
    do.LookOnDisk: Schedule._look,
    do.FindCheckpoint: Schedule._find,
    do.Serve: Schedule._serve,
    do.StopServing: Schedule._stop_serving,
    do.Recall: Schedule._recall,
}


def _only_lives(event: Event) -> bool:
    """Whether a worker says that it lives, and where it is: no tick is due by that."""
    return isinstance(event, Received) and isinstance(event.message, Heartbeat)


def first_violation(seeds: range, policy: str = "together", *ranks: int) -> str:
    """What the first schedule that goes wrong says; "" when none does."""
    gc.freeze()  # what was there before is not looked through for garbage
    gc.disable()  # a run's objects are garbage when it is over, not before
    try:
        for seed in seeds:
            try:
                Schedule(seed, policy, *ranks).go()
            except Violation as wrong:
                return f"seed {seed}, {policy}: {wrong}"
            if seed % 10 == 0:
                gc.collect(0)  # nothing survives a run, so there is nothing older
        return ""
    finally:
        gc.enable()
        gc.unfreeze()
