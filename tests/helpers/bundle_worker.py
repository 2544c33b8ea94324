"""A worker process that runs the bundle it is given, and says where a round is."""

import sys
import time

from pcp.bundle import Bundle
from pcp.runtime import Endpoint
from pcp.training.loading import load
from pcp.training.worker import Identity, Worker


def main(name: str, port: str, pause: str) -> None:
    """Train with the shepherd on `port`; each inner step takes `pause` s more."""

    def log(text: str) -> None:
        print(f"{name}: {text}", flush=True)

    def load_slow(content: bytes):
        trainer = load(Bundle.from_bytes(content), "local-sync", None)
        step, turn = trainer.step, trainer.turn

        def slow_step(batches):
            time.sleep(float(pause))
            return step(batches)

        def loud_turn():
            turn()
            if trainer.resumes:
                sent, back = sorted(trainer._sent), sorted(trainer._applied)
                log(f"step {trainer._at}: left {sent}, back {back}")

        trainer.step, trainer.turn = slow_step, loud_turn
        return trainer

    identity = Identity(name=name, host="127.0.0.1", port=int(port))
    worker = Worker(identity, Endpoint.listen("127.0.0.1:0"), load_slow, log)
    log("started")
    log(f"ended: {worker.run()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
