"""A rank of an island as a process, which may end itself at a point of the protocol."""

import os
import signal
import sys
from typing import Any

from pcp.runtime import Endpoint
from pcp.runtime.program import devices
from pcp.runtime.program.piece_rings import PieceExchange, _row
from pcp.training.trainer.load import load_made
from pcp.training.wire.messages import (
    Commit,
    Prepared,
)
from pcp.training.worker.worker import Identity, Worker

POINTS = ("step", "reduced", "prepared", "committed")
"""In its inner steps, behind its coordinate's exchange, behind its word that it is
prepared, and when a commit has reached it."""
RING = "ring"
"""Among islands of unlike shape: when one of its rings has its sum, and no other."""


class Doomed(Worker):
    """Kills its process at a point of a round, as the machine's end would."""

    def __init__(self, point: str, round_: int, *parts: Any) -> None:
        self._point, self._round = point, round_
        super().__init__(*parts)
        send = self._runner._send

        def sending(message: Any) -> None:
            send(message)
            if isinstance(message, Prepared) and message.round == round_:
                self._strike("prepared")

        self._runner._send = sending
        if point == RING:
            self._arm_rings()

    def _arm_rings(self) -> None:
        kind: Any = PieceExchange
        begin = kind.all_reduced_async

        def beginning(exchange: Any, array: Any, *how: Any, **more: Any) -> Any:
            if self._state.committed == self._round - 1 and len(exchange._reduced) > 1:
                first = exchange._reduced[0]
                group, row = exchange._groups[first.ring], _row(array, first.boxes)
                group.all_reduced_async(row, tag=exchange._name, donate=True).result()
                self._strike(RING)
            return begin(exchange, array, *how, **more)

        kind.all_reduced_async = beginning

    def armed(self, trainer: Any) -> Any:
        step, outer = trainer.step, trainer.outer

        def stepping(batches: Any) -> Any:
            if self._state.committed == self._round - 1:
                self._strike("step")
            return step(batches)

        def exchanging(tokens: float, groups: Any) -> Any:
            found = outer(tokens, groups)
            if self._state.committed == self._round - 1:
                self._strike("reduced")
            return found

        trainer.step, trainer.outer = stepping, exchanging
        return trainer

    def _adopt(self, commit: Commit) -> None:
        if commit.round == self._round:
            self._strike("committed")
        super()._adopt(commit)

    def _strike(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


def main(name: str, port: str, point: str = "", round_: str = "0") -> None:
    """Work for the shepherd on `port`, and say how much the device held."""
    devices._ALLOCATORS.clear()  # what a cache keeps would count
    opened: list[Any] = []

    def load(content: bytes, coordinate: int = 0) -> Any:
        made = load_made(content, "the bundle", "local-sync", "cpu", coordinate)
        opened.append(made.functions.program.device)
        return worker.armed(made)

    worker = Doomed(
        point,
        int(round_),
        Identity(name, "127.0.0.1", int(port)),
        Endpoint.listen("127.0.0.1:0"),
        load,
        lambda line: print(line, flush=True),
    )
    print(f"ended: {worker.run()}", flush=True)
    most = [device.hal.allocator.statistics["device_bytes_peak"] for device in opened]
    print(f"held at most {max(most, default=0)} bytes", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
