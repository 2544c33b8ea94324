"""A worker process that runs the bundle it is given, and says where a round is."""

import sys
from collections.abc import Callable
from typing import Any

from helpers.worlds.training_cluster import Loader, slowly

from pcp.runtime import Endpoint
from pcp.training.worker.worker import Identity, Worker


def telling(pause: float, log: Callable[[str], None]) -> Loader:
    """Loads a trainer that says how far it is; its steps take `pause` s more."""

    def loaded(content: bytes) -> Any:
        trainer = slowly(pause)(content)
        turn = trainer.turn

        def told() -> None:
            turn()
            if trainer.resumes:
                exchange = trainer.exchange
                sent, back = sorted(exchange._sent), sorted(exchange._applied)
                log(f"step {exchange._at}: left {sent}, back {back}")

        trainer.turn = told
        return trainer

    return loaded


def main(name: str, port: str, pause: str) -> None:
    """Train with the shepherd on `port`."""

    def log(text: str) -> None:
        print(f"{name}: {text}", flush=True)

    identity = Identity(name=name, host="127.0.0.1", port=int(port))
    endpoint = Endpoint.listen("127.0.0.1:0")
    worker = Worker(identity, endpoint, telling(float(pause), log), log)
    log("started")
    log(f"ended: {worker.run()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
