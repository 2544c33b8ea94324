"""Runs of a shepherd with workers in threads, for tests."""

import threading
import time
from datetime import datetime

from helpers.models.bigram_numpy import BigramTrainer, bundle

from pcp.runtime import Endpoint
from pcp.tools.commands.control import give
from pcp.training.config.experiment import parse
from pcp.training.observe.metrics import Quiet
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.run_folder import RunFolder
from pcp.training.worker.worker import Identity, Worker

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


class Watcher(Quiet):
    """Remembers what a shepherd said."""

    def __init__(self):
        self.lines, self.rounds, self.validations = [], [], []

    def log(self, text):
        self.lines.append(text)

    def round(self, record):
        self.rounds.append(record)

    def validation(self, number, loss, batches):
        self.validations.append((number, loss, batches))

    def wait_for_round(self, number, seconds=30.0):
        """Return once round `number` is committed."""
        until = time.monotonic() + seconds
        while not any(r.round >= number for r in self.rounds):
            assert time.monotonic() < until, (number, self.lines)
            time.sleep(0.005)


class Background(threading.Thread):
    """Runs a function; `finish` gives its result or raises what it raised."""

    def __init__(self, work):
        super().__init__(daemon=True)
        self._work, self.result, self.error = work, None, None
        self.start()

    def run(self):
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error

    def finish(self, seconds=30.0):
        self.join(seconds)
        assert not self.is_alive(), "it did not end in time"
        if self.error is not None:
            raise self.error
        return self.result


def start_shepherd(exp, folder=None, compile_for=lambda target: bundle(), **options):
    """A shepherd in a thread, its watcher, and the thread."""
    folder = folder or RunFolder.create(exp, datetime(2026, 1, 1))
    watcher = Watcher()
    shepherd = Shepherd(exp, folder, compile_for, watcher, **options)
    return shepherd, watcher, Background(shepherd.run)


def start_worker(port, name, pause=0.0, log=lambda text: None, **identity):
    """A worker in a thread."""
    worker = Worker(
        Identity(name=name, host="127.0.0.1", port=port, **identity),
        Endpoint.listen("127.0.0.1:0"),
        lambda content: BigramTrainer(pause),
        log,
    )
    return Background(worker.run)


def order(shepherd, action, **values):
    """Give it an operator's order; what it says."""
    return give(shepherd.folder.path, {"action": action, **values}, None, 10.0)


def run(exp, workers=2, folder=None, pause=0.0):
    """A complete run: its outcome, its folder, its watcher."""
    shepherd, watcher, thread = start_shepherd(exp, folder, workers=workers)
    crew = [start_worker(shepherd.port, f"w{i}", pause) for i in range(workers)]
    outcome = thread.finish()
    assert [w.finish(10) for w in crew] == ["the run is complete"] * workers
    return outcome, shepherd.folder, watcher
