"""A shepherd and workers in threads, which run real bundles."""

import threading
import time
from functools import partial

from helpers.training_runs import Background, Watcher

from pcp.bundle import Bundle
from pcp.runtime import Endpoint
from pcp.training.loading import load
from pcp.training.shepherd import Shepherd
from pcp.training.worker import Identity, Worker


def load_bundle(content: bytes):
    """A trainer of a bundle, in a worker's own thread."""
    return load(Bundle.from_bytes(content), "local-sync", None)


def slowly(pause):
    """Loads a trainer whose inner steps take `pause` s more."""

    def loaded(content):
        trainer = load_bundle(content)
        step = trainer.step

        def later(batches):
            time.sleep(pause)
            return step(batches)

        trainer.step = later
        return trainer

    return loaded


def crew_member(name, port, loader=load_bundle):
    """Work for the shepherd on `port`; why the run ended."""
    endpoint = Endpoint.listen("127.0.0.1:0")
    identity = Identity(name, "127.0.0.1", port)
    return Worker(identity, endpoint, loader, lambda line: None).run()


class Crew:
    """A shepherd and workers in threads; worker i joins when i - 1 is there."""

    def __init__(self, exp, folder, content, workers, loaders=()):
        self.watcher = Watcher()
        self.shepherd = Shepherd(
            exp, folder, lambda target: content, self.watcher, workers=workers
        )
        self.run = Background(self.shepherd.run)
        self.workers = []
        for i in range(workers):
            loader = loaders[i] if i < len(loaders) else load_bundle
            work = partial(crew_member, f"w{i}", self.shepherd.port, loader)
            self.workers.append(Background(work))
            self._wait(
                lambda i=i: len(list(self.shepherd.roster)) > i or self.run.result
            )

    def _wait(self, ready):
        pause = threading.Event()
        for _ in range(3000):
            if ready():
                return
            pause.wait(0.01)
        raise AssertionError("a worker did not join")
