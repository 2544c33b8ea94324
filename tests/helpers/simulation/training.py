"""A run of training in one thread at a time, under a scheduler that knows no mercy.

The shepherd, its ledger, folder and checkpoints, and the workers with their links,
mailboxes, rounds and states are the real ones, in simulated processes
(`virtual_processes`), over a simulated network (`simulated_network`). What is trained
is a hash of all that led to it (`hashed_training`). Workers and the shepherd are
killed at any point, workers freeze, connections break, newcomers come, all at moments
drawn from a seed. After that the run must complete, and everything must be true.
"""

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

from helpers.simulation import hashed_trainer as hashed
from helpers.simulation.fault_schedule import FAULT_SECONDS, Faults
from helpers.simulation.groups import VirtualEndpoint
from helpers.simulation.network import FOREVER, Network, VirtualHub
from helpers.simulation.virtual_processes import (
    Killed,
    Process,
    VirtualCondition,
    World,
)

from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.coordinator.completion import Outcome
from pcp.training.observe.metrics import NullObserver
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage import append_log, ledger
from pcp.training.storage.round_record import Round
from pcp.training.storage.run_folder import RunFolder
from pcp.training.wire.client import Timing
from pcp.training.worker.worker import Identity, Worker
from pcp.training.worker.worker_state import WorkerState

SAMPLES = 4000
PATIENCE_SECONDS = 400.0
"""After the last fault the run is complete by then."""
program = cache(hashed.program)
ROOM = "pcp.training"


class Wrong(AssertionError):
    """Something that must hold does not."""


class Simulation:
    """One run; everything follows from the seed, but for what is `fixed`.

    That are `workers`, `own_clocks`, the number of `faults`, more faults that are
    `aimed` (`drawn_faults`), and keys of an experiment.
    """

    def __init__(self, seed: int, **fixed: Any) -> None:
        self.seed = seed
        self.world = World(seed)
        self.network = Network(self.world)
        self.draw = draw = random.Random(f"plan {seed}")
        self.workers = fixed.pop("workers", draw.randint(1, 5))
        self.own_clocks = fixed.pop("own_clocks", False)
        self.faults = fixed.pop("faults", draw.randint(0, 8))
        self.aimed = fixed.pop("aimed", ())
        self.keys = self._keys() | fixed
        self.alive: dict[str, Process] = {}
        self.held: list[tuple[str, int, str]] = []
        """Whoever held a state: its name, the round and the digest."""
        self.kept: dict[int, Round] = {}
        """What was last kept of a round."""
        self.ended: dict[str, tuple[str, int | None]] = {}
        """Of workers that were let go: why, and the round that they hold."""
        self.lines: list[str] = []
        self.outcome: Outcome | None = None
        self.shepherd: Shepherd | None = None
        self.process: Process | None = None
        self._lives = 0
        self._faults = Faults(self, draw)

    def _keys(self) -> dict[str, Any]:
        draw = self.draw
        late = draw.random() < 0.3
        patient = not late and draw.random() < 0.5
        return {
            "outer_loop_steps": draw.randint(3, 14),
            "checkpoint_every": draw.choice([1, 3, 5, 100]),
            "rejoin_rounds": draw.choice([0, 1, 10]),
            "validate_every": draw.choice([0, 1, 2]),
            "validation_fraction": draw.choice([0.0, 0.05]),
            "quorum": None if patient else draw.randint(1, max(1, self.workers)),
            "grace_seconds": draw.choice([0.02, 0.2]),
            "round_deadline_seconds": None if patient else draw.choice([None, 0.3, 2]),
            "late": "next" if late and not self.own_clocks else "drop",
            "uneven_steps": draw.random() < 0.2,
            "keep_checkpoints": draw.choice([1, 3]),
        }

    # Running.

    def run(self) -> "Simulation":
        """To the end; raises what went wrong."""
        with (
            tempfile.TemporaryDirectory(prefix="pcp-drawn-") as folder,
            self._patched(),
        ):
            self._begin(folder)
            try:
                self._go_on()
            finally:
                self._stop()
            self._check()
        return self

    def _begin(self, folder: str) -> None:
        self.experiment = parse(
            {
                "model_path": "none.mlir",
                "data_path": "none",
                "learning_rate": 0.1,
                "tau": 2,
                "max_epochs": 10,
                "workers": self.workers,
                "checkpoint_dir": folder,
                "round_timeout_seconds": 5.0,
                "heartbeat_limit_seconds": 1.5,
                "heartbeat_seconds": 0.5,
            }
            | self.keys
        )
        self.folder = RunFolder.create(self.experiment, datetime(2026, 1, 1))
        self._start_shepherd()
        for _ in range(self.workers):
            self.world.after(self.draw.random(), self.start_worker)
        self._faults.plan(self.faults, self.aimed)

    def _go_on(self) -> None:
        world = self.world
        while self.outcome is None:
            world.advance()
            if world.errors:
                name, error = world.errors[0]
                raise Wrong(f"{name}: {error!r}") from error
            if world.now > FAULT_SECONDS + PATIENCE_SECONDS:
                raise Wrong(f"nothing moves; {self._where()}")
        until = world.now + 30.0
        while world.now < until and any(p.alive for p in self.alive.values()):
            world.advance()
        if world.errors:
            name, error = world.errors[0]
            raise Wrong(f"{name}: {error!r}") from error

    def _stop(self) -> None:
        """All threads end."""
        self._close_ledger()
        processes = [*self.alive.values()]
        if self.process is not None:
            processes.append(self.process)
        for process in processes:
            process.kill()
        while any(thread.started for p in processes for thread in p.threads):
            self.world.advance()

    def _where(self) -> str:
        shepherd = self.shepherd
        if shepherd is None:
            return "there is no shepherd"
        members = [(m.name, m.state, m.committed) for m in shepherd.roster]
        return f"{shepherd.committed} {members} {shepherd.training.status()}"

    # Processes.

    def _start_shepherd(self) -> None:
        process = self.process = Process(self.world, "shepherd")
        process.at_death.append(self._shepherd_died)
        self.world.thread_of(process, self._shepherd_lives)

    def _shepherd_lives(self) -> None:
        process = self.world.thread.process
        endpoint = VirtualEndpoint(self.network, process)
        listen = SimpleNamespace(listen=lambda *_, **__: endpoint)
        with mock.patch("pcp.training.shepherd.shepherd.Endpoint", listen):
            self.shepherd = Shepherd(
                self.experiment,
                self.folder,
                lambda target: program(self.own_clocks),
                Watcher(self),
                clock=self.world.monotonic,
                hub=VirtualHub(self.network, process),  # pyright: ignore[reportArgumentType]
            )
        self.outcome = self.shepherd.run()

    def _shepherd_died(self) -> None:
        self._close_ledger()
        self.note("the shepherd was killed")
        self.world.after(self.world.random.uniform(0.1, 2.0), self._start_shepherd)

    def _close_ledger(self) -> None:
        if self.shepherd is not None:
            self.shepherd.ledger.close()
            self.shepherd = None

    def start_worker(self, name: str | None = None) -> None:
        self._lives += 1
        name = name or f"w{self._lives}"
        process = Process(self.world, f"{name}.{self._lives}")
        self.alive[process.name] = process
        process.at_death.append(lambda: self._worker_died(process, name))
        self.world.thread_of(process, lambda: self._worker_lives(process, name))

    def _worker_lives(self, process: Process, name: str) -> None:
        world, draw = self.world, self.world.random
        factor = draw.choice([1.0, 1.0, 2.0, 6.0])
        endpoint = VirtualEndpoint(self.network, process)
        trainer: Any = hashed.HashTrainer(
            world.sleep,
            speed=lambda: factor * draw.uniform(0.5, 1.5),
            once=not self.own_clocks,
        )
        worker = Worker(
            Identity(name, "127.0.0.1", 1),
            endpoint,
            lambda _: trainer,
            lambda text: self.note(f"  {process.name}: {text}"),
            Timing(heartbeat=0.5, silence=3.0, patience=FOREVER),
        )
        mail: Any = worker._mail
        mail.changed = VirtualCondition(world)
        said = worker.run()
        self.note(f"{process.name} ends: {said}")
        self.ended[process.name] = (said, worker._state.committed)
        process.at_death.pop(0)
        process.kill()

    def _worker_died(self, process: Process, name: str) -> None:
        self.note(f"{process.name} was killed")
        again = name if self.draw.random() < 0.5 else None
        pause = self.world.random.uniform(0.1, 3.0)
        self.world.after(pause, lambda: self.start_worker(again))

    def note(self, line: str) -> None:
        """For who looks at what happened."""
        self.lines.append(f"{self.world.now:8.3f} {line}")

    # What must hold.

    def _check(self) -> None:
        found = ledger.check(self.folder.ledger)
        self._check_kept()
        states, digests = self._chain()
        assert found.rounds == self.experiment.outer_loop_steps, found
        for name, round_, digest in self.held:
            if digest not in digests[round_]:
                raise Wrong(f"{name} held a state of round {round_} that never was")
        for name, (said, round_) in self.ended.items():
            if said != "the run is complete":
                raise Wrong(f"{name} ended: {said}")
            last = [d for n, r, d in self.held if n == name and r == round_]
            if last and last[-1] != hashed.digest(states[round_ or 0]):
                raise Wrong(f"{name} ended with another state of round {round_}")

    def _chain(self) -> tuple[list[Any], dict[int, set[str]]]:
        """The states of the last history, and the digests that rounds ever had."""
        states = [hashed.first_state(self.experiment.seed)]
        digests = {0: {hashed.digest(states[0])}}
        for line in ledger.read(self.folder.ledger)[0]:
            if line["kind"] == "rewind":
                del states[line["to"] + 1 :]
            if line["kind"] != "commit":
                continue
            states.append(hashed.next_state(states[-1], line["consumed"].values()))
            made = hashed.digest(states[-1])
            if line["digest"] != made:
                raise Wrong(f"round {line['round']} is not what its leases make")
            digests.setdefault(line["round"], set()).add(made)
        return states, digests

    def _check_kept(self) -> None:
        """Of every round there is what was committed last."""
        lines = [x for x in ledger.read(self.folder.ledger)[0] if x["kind"] == "commit"]
        committed = {x["round"]: (x["epoch"], x["tokens"]) for x in lines}
        kept = {number: (r.epoch, r.tokens) for number, r in self.kept.items()}
        if wrong := committed.items() - kept.items():
            raise Wrong(f"committed, and not kept or in another way: {sorted(wrong)}")

    # What the real code finds in place of the world.

    @contextmanager
    def _patched(self) -> Iterator[None]:
        world, network, samples = self.world, self.network, hashed.Samples(SAMPLES)
        client, runner = f"{ROOM}.wire.client", f"{ROOM}.worker.round_runner"
        steps, group = f"{ROOM}.worker.inner_steps", f"{ROOM}.worker.round_group"
        saving, artifacts = (
            f"{ROOM}.shepherd.checkpointer",
            f"{ROOM}.shepherd.artifacts",
        )
        worker, ahead = f"{ROOM}.worker.worker", f"{ROOM}.worker.read_ahead"
        stand_ins = {
            f"{client}.connect": network.dial,
            f"{client}.threading": world,
            f"{client}.random": SimpleNamespace(Random=lambda: world.random),
            f"{saving}.ThreadPoolExecutor": OneByOne,
            f"{artifacts}.Corpus": lambda *_: samples,
            f"{worker}.Corpus": lambda *_: samples,
            f"{ahead}.ThreadPoolExecutor": OneByOne,
            f"{ROOM}.storage.ledger.append": self._append,
            "os.fsync": lambda _: None,
        }
        for module in (client, worker, runner, steps, ahead, saving):
            stand_ins[f"{module}.time"] = world
        for module in (worker, group, saving):
            stand_ins[f"{module}.fetch_snapshot"] = network.fetch
        with ExitStack() as stack:
            for name, stand_in in stand_ins.items():
                stack.enter_context(mock.patch(name, stand_in))
            stack.enter_context(
                mock.patch.object(WorkerState, "hold", self._noting(WorkerState.hold))
            )
            yield

    def _noting(self, hold: Callable[[WorkerState, int], None]) -> Callable[..., None]:
        def noting(state: WorkerState, reached: int) -> None:
            hold(state, reached)
            name = self.world.thread.process.name
            digest = hashed.digest(state.trainer.shared[hashed.NAME])
            self.held.append((name, reached, digest))

        return noting

    def _append(self, file: Any, line: bytes, **said: Any) -> None:
        """A line of the ledger; it is half written where the shepherd is killed."""
        process = self.world.thread.process
        try:
            process.point()
        except Killed:
            with open(said["path"], "ab") as torn:
                torn.write(line[: int(self.world.random.random() * len(line))])
            raise
        append_log.append(file, line, **said)
        self.note(f"ledger {line[:-1].decode()[:230]}")
        self.network.overheard(json.loads(line)["kind"] + " line", process)
        process.point()


class Watcher(NullObserver):
    """Keeps what a shepherd says."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def log(self, text: str) -> None:
        """One line."""
        self._simulation.note(f"shepherd: {text}")

    def keep(self, record: Round) -> None:
        """A round's figures."""
        self._simulation.kept[record.round] = record


class OneByOne:
    """For an executor: one thing after another."""

    def __init__(self, _: int, **__: object) -> None:
        self.map = map

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Do it now."""
        done: Future[Any] = Future()
        done.set_result(work(*given))
        return done

    def shutdown(self, **_: object) -> None:
        """Nothing runs any more."""

    def __enter__(self) -> "OneByOne":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs any more."""
