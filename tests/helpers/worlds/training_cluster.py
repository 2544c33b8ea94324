"""A shepherd and workers in threads, which run real bundles."""

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from helpers.worlds.communicators import eventually
from helpers.worlds.training_runs import Background, Watcher, checkpoint_of, stacks

from pcp.bundle import Bundle
from pcp.runtime import Endpoint
from pcp.training.config.experiment import Experiment
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.ledger import check
from pcp.training.storage.run_folder import RunFolder
from pcp.training.trainer.load import load
from pcp.training.worker.worker import Identity, Worker

Loader = Callable[..., Any]


def load_bundle(content: bytes, coordinate: int = 0) -> Any:
    """A trainer that runs a bundle here, in a worker's own thread."""
    return load(Bundle.from_bytes(content), "local-sync", None, coordinate)


def stepping(before: Callable[[int], object]) -> Loader:
    """Loads a trainer that calls `before(n)` before its inner step n, from 1 on."""

    def loaded(content: bytes) -> Any:
        trainer, numbers = load_bundle(content), count(1)
        step = trainer.step

        def later(batches: Any) -> Any:
            before(next(numbers))
            return step(batches)

        trainer.step = later
        return trainer

    return loaded


def slowly(pause: float) -> Loader:
    """Loads a trainer whose inner steps take `pause` s more."""
    return stepping(lambda number: time.sleep(pause))


def crew_member(name: str, port: int, loader: Loader = load_bundle) -> str:
    """Work for the shepherd on `port`; why the run ended."""
    endpoint = Endpoint.listen("127.0.0.1:0")
    identity = Identity(name, "127.0.0.1", port)
    return Worker(identity, endpoint, loader, lambda line: None).run()


class Hasty(Shepherd):
    """Goes back to a checkpoint soon: the state is lost, nobody will bring it."""

    def turn(self) -> None:
        held = self.roster.holders(self.committed)
        self.state.grace = 2 * self.experiment.heartbeat_limit_seconds if held else 0.6
        super().turn()


class Crew:
    """A shepherd and workers in threads; worker i joins when i - 1 is there.

    The run is in `folder`, and continued if it is there. `between` is called before
    each worker but the first; what the shepherd says goes to `log`.
    """

    def __init__(
        self,
        exp: Experiment,
        folder: Path,
        content: bytes,
        workers: int,
        loaders: Sequence[Loader] = (),
        *,
        log: Callable[[str], object] = lambda text: None,
        between: Callable[["Crew"], object] = lambda crew: None,
        shepherd: type[Shepherd] = Shepherd,
    ) -> None:
        self.watcher = Watcher(log)
        run = RunFolder.at(folder, exp)
        self.shepherd = shepherd(
            exp, run, lambda target: content, self.watcher, workers=workers
        )
        self.ledger = run.ledger
        self.run = Background(self.shepherd.run)
        self.workers: list[Background] = []
        for i in range(workers):
            if i:
                between(self)
            loader = loaders[i] if i < len(loaders) else load_bundle
            work = partial(crew_member, f"w{i}", self.shepherd.port, loader)
            self.workers.append(Background(work))
            self.wait(lambda i=i: len(self.shepherd.roster) > i)

    def wait(self, ready: Callable[[], object]) -> None:
        """Until it is `ready()`, or the run over."""
        eventually(lambda: bool(ready()) or not self.run.is_alive(), 30)

    def sizes(self) -> list[int]:
        """How many took part in each round."""
        return [record.workers for record in self.watcher.rounds]

    def finish(
        self, dead: Collection[int] = (), why: str = "the run is complete"
    ) -> Checkpoint:
        """The last checkpoint, whose state is the committed one; the ledger adds up.

        The workers `dead` have ended themselves, all others with the run, and `why`.
        """
        self.run.join(90)
        failed = [str(w.error) for w in self.workers if w.error is not None]
        assert not self.run.is_alive(), (failed, self.watcher.lines[-10:], stacks())
        outcome = self.run.finish()
        for i, worker in enumerate(self.workers):
            if i in dead:
                worker.join(30)
                assert isinstance(worker.error, SystemExit)
            else:
                assert worker.finish(30) == why
        check(self.ledger)
        return checkpoint_of(outcome)
