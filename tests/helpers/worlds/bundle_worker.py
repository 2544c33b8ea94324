"""A worker process that runs the bundle it is given, and says where a round is."""

import sys
import time

from pcp.bundle import Bundle
from pcp.runtime import Endpoint
from pcp.training.trainer.load import load
from pcp.training.worker.worker import Identity, Worker


class Slow:
    """A trainer whose inner steps take `pause` s more, and that says how far it is."""

    def __init__(self, trainer, pause, log):
        self._trainer, self._pause, self._log = trainer, pause, log

    def __getattr__(self, name):
        return getattr(self._trainer, name)

    def step(self, batches):
        time.sleep(self._pause)
        return self._trainer.step(batches)

    def turn(self):
        self._trainer.turn()
        if self.resumes:
            exchange = self.exchange
            sent, back = sorted(exchange._sent), sorted(exchange._applied)
            self._log(f"step {exchange._at}: left {sent}, back {back}")


def main(name: str, port: str, pause: str) -> None:
    """Train with the shepherd on `port`."""

    def log(text: str) -> None:
        print(f"{name}: {text}", flush=True)

    def load_slow(content: bytes):
        trainer = load(Bundle.from_bytes(content), "local-sync", None)
        return Slow(trainer, float(pause), log)

    identity = Identity(name=name, host="127.0.0.1", port=int(port))
    worker = Worker(identity, Endpoint.listen("127.0.0.1:0"), load_slow, log)
    log("started")
    log(f"ended: {worker.run()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
