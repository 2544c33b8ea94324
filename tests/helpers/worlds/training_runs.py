"""Runs of a shepherd with workers in threads, for tests."""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from helpers.models.bigram_numpy import BigramTrainer, Pause, bundle

from pcp.runtime import Endpoint
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.coordinator.completion import Outcome
from pcp.training.observe.metrics import NullObserver
from pcp.training.observe.orders import give
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage import checkpoint
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.island_shapes import cut_of
from pcp.training.storage.round_record import Round
from pcp.training.storage.run_folder import RunFolder
from pcp.training.storage.snapshots import shared_of
from pcp.training.worker.worker import Identity, Worker

Result = TypeVar("Result")

TEXT = ("the quick brown fox jumps over the lazy dog. " * 200).encode()


def experiment(folder, **keys):
    """An experiment on a small text in `folder`."""
    path = folder / "text"
    if not path.exists():
        path.write_bytes(TEXT)
    base = {
        "model_path": "none.mlir",
        "data_path": str(path),
        "learning_rate": 0.1,
        "tau": 4,
        "outer_loop_steps": 5,
        "max_epochs": 10,
        "checkpoint_dir": str(folder / "runs"),
        "checkpoint_every": 2,
        "round_timeout_seconds": 20.0,
        "heartbeat_limit_seconds": 2.0,
        "heartbeat_seconds": 0.2,
    }
    return parse(base | keys)


class Watcher(NullObserver):
    """Remembers what a shepherd said."""

    def __init__(self, log: Callable[[str], object] = lambda text: None) -> None:
        self.lines: list[str] = []
        self.rounds: list[Round] = []
        self.validations: list[tuple[int, float, int]] = []
        self._log = log

    def log(self, text: str) -> None:
        self.lines.append(text)
        self._log(text)

    def round(self, record: Round) -> None:
        self.rounds.append(record)

    def validation(self, number: int, loss: float, batches: int) -> None:
        self.validations.append((number, loss, batches))

    def wait_for_round(self, number: int, seconds: float = 30.0) -> None:
        """Return once round `number` is committed."""
        until = time.monotonic() + seconds
        while not any(r.round >= number for r in self.rounds):
            assert time.monotonic() < until, (number, self.lines)
            time.sleep(0.005)


def stacks(frames: int = 4) -> str:
    """Where each thread of the process is: its innermost frames, one line a thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        inner = reversed(traceback.extract_stack(frame)[-frames:])
        places = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in inner]
        lines.append(f"{names.get(ident, ident)}: {' < '.join(places)}")
    return "\n".join(sorted(lines))


class Background(threading.Thread, Generic[Result]):
    """Runs a function; `finish` gives its result or raises what it raised."""

    def __init__(self, work: Callable[[], Result]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._results: list[Result] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self.error = error

    def finish(self, seconds: float = 30.0) -> Result:
        self.join(seconds)
        assert not self.is_alive(), f"it did not end in time; threads:\n{stacks()}"
        if self.error is not None:
            raise self.error
        (result,) = self._results
        return result


def checkpoint_of(outcome: Outcome) -> Checkpoint:
    """The last one of a run; its state is the committed one."""
    assert outcome.checkpoint is not None
    saved = checkpoint.load(outcome.checkpoint)
    parts = cut_of(saved.info)
    assert parts.digest(shared_of(saved)) == saved.info["digest"]
    return saved


def start_shepherd(exp, folder=None, compile_for=lambda target: bundle(), **options):
    """A shepherd in a thread, its watcher, and the thread."""
    folder = folder or RunFolder.create(exp, datetime(2026, 1, 1))
    watcher = Watcher()
    shepherd = Shepherd(exp, folder, compile_for, watcher, **options)
    return shepherd, watcher, Background(shepherd.run)


def start_worker(
    port: int,
    name: str,
    pause: Pause = 0.0,
    log: Callable[[str], None] = lambda text: None,
    trainer: type[BigramTrainer] = BigramTrainer,
    **identity: Any,
) -> Background[str]:
    """A worker in a thread."""
    worker = Worker(
        Identity(name=name, host="127.0.0.1", port=port, **identity),
        Endpoint.listen("127.0.0.1:0"),
        lambda content: trainer(pause),
        log,
    )
    return Background(worker.run)


def order(shepherd, action, **values):
    """Give it an operator's order; what it says."""
    return give(shepherd.folder.path, {"action": action, **values}, None, 10.0)


def run(exp, workers=2, folder=None, pause=0.0):
    """A complete run: its outcome, its folder, its watcher.

    Its workers are new: of a run that goes on, nobody has the state.
    """
    shepherd, watcher, thread = start_shepherd(exp, folder, workers=workers)
    if folder is not None:
        shepherd.state.grace = 0.3
    crew = [start_worker(shepherd.port, f"w{i}", pause) for i in range(workers)]
    outcome = thread.finish()
    assert [w.finish(10) for w in crew] == ["the run is complete"] * workers
    return outcome, shepherd.folder, watcher
