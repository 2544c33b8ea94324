"""Runs of compiled bundles that are stopped, killed, resumed, and compared.

As a program: a shepherd and its workers in one process, which kills itself when the
checkpoint of a round is on disk, while the next round is under way.
"""

import json
import os
import signal
import sys
import time
from functools import cache
from pathlib import Path

from helpers import outer_models
from helpers.training_runs import Background, Watcher, experiment

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.runtime import Endpoint
from pcp.training import checkpoint as checkpoints
from pcp.training.checkpoint import Checkpoint
from pcp.training.loading import load
from pcp.training.run_folder import RunFolder
from pcp.training.shepherd import Shepherd
from pcp.training.worker import Identity, Worker

ROWS, COLUMNS = 20, 15


def text() -> str:
    """The quadratic model of `outer_models`, with a matrix for its first vector."""
    flat, matrix = f"tensor<{ROWS * COLUMNS}xf32>", f"tensor<{ROWS}x{COLUMNS}xf32>"
    reshape = f"  %w = stablehlo.reshape %m : ({matrix}) -> {flat}\n"
    model = outer_models.text("quadratic")
    model = model.replace(f"%w: {flat}", f"%m: {matrix}")
    return model.replace("  %zero =", f"{reshape}  %zero =", 1)


@cache
def bundle(algorithm: str, optimizer: str) -> bytes:
    """A training bundle for this machine, made once in a process."""
    options = CompileOptions(
        targets=("cpu",), mode="train", optimizer=optimizer, algorithm=algorithm
    )
    return driver.compile(parse(text()), options).to_bytes()


def trainer_of(content: bytes):
    """A trainer that runs a bundle here."""
    return load(Bundle.from_bytes(content), "local-sync", None)


def keys(**changed) -> dict:
    """Of an experiment on it, whose data last for two epochs and a half."""
    return {
        "vocabulary_size": 128,
        "tau": 2,
        "checkpoint_every": 2,
        "outer_loop_steps": 5,
        "effective_batch_size": 2 * outer_models.BATCH,
        "heartbeat_limit_seconds": 0.6,
        "seed": 7,
    } | changed


class Crew:
    """A shepherd and workers in threads; worker i joins when i - 1 is there.

    `between` is called before each but the first. `restored` has, by worker, what was
    its own each time that it had taken a state.
    """

    def __init__(
        self, folder, content: bytes, workers: int, exp, log=None, between=lambda _: 0
    ):
        self.watcher = Watcher()
        self.restored: list[list] = [[] for _ in range(workers)]
        if log is not None:
            self.watcher.log = log
        run = RunFolder.at(folder, exp)
        self.shepherd = Shepherd(
            exp, run, lambda target: content, self.watcher, workers=workers
        )
        self.run = Background(self.shepherd.run)
        self.workers = []
        for i in range(workers):
            if i:
                between(self)
            self.workers.append(Background(lambda i=i: self._work(i)))
            self._wait_for(i)

    def _work(self, number: int) -> str:
        identity = Identity(f"w{number}", "127.0.0.1", self.shepherd.port)

        def loaded(content: bytes):
            trainer = trainer_of(content)
            restore = trainer.restore

            def noted(snapshot, index):
                restore(snapshot, index)
                self.restored[number].append(dict(trainer.private))

            trainer.restore = noted
            return trainer

        endpoint = Endpoint.listen("127.0.0.1:0")
        return Worker(identity, endpoint, loaded, lambda line: None).run()

    def _wait_for(self, number: int) -> None:
        self.wait(lambda: len(self.shepherd.roster) > number)

    def wait(self, ready) -> None:
        """Until it is `ready()`, or the run over."""
        until = time.monotonic() + 30
        while not ready() and self.run.is_alive():
            assert time.monotonic() < until, self.watcher.lines
            time.sleep(0.005)

    def finish(self) -> Checkpoint:
        """The last checkpoint."""
        outcome = self.run.finish(90)
        for worker in self.workers:
            worker.finish(30)
        return checkpoints.load(outcome.checkpoint)


def main(folder: str, content: str, workers: str, at: str, given: str) -> None:
    """Run in `folder`/run until the checkpoint of round `at` is on disk."""

    def log(line: str) -> None:
        print(line, flush=True)
        if line.startswith(f"checkpoint of round {at} in"):
            os.kill(os.getpid(), signal.SIGKILL)

    exp = experiment(Path(folder), **json.loads(given))
    code = Path(content).read_bytes()
    Crew(Path(folder) / "run", code, int(workers), exp, log).run.join(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
