"""Runs with three shepherds as processes: leaders are killed with their folders."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

from helpers.models.bigram_numpy import BigramTrainer
from helpers.servers.processes import Processes, free_port
from helpers.worlds.training_runs import Background

from pcp.errors import PcpError
from pcp.runtime import Endpoint
from pcp.training.storage.ledger import read
from pcp.training.wire.client import Timing
from pcp.training.worker.worker import Identity, Worker

MODULE = "helpers.worlds.standby_shepherd"


class Standby:
    """Three shepherds, and two workers in threads of this process."""

    def __init__(
        self, folder: Path, children: Processes, rounds: int, etcd: str | None = None
    ) -> None:
        self.folder, self.rounds, self._children = folder, rounds, children
        meeting = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
        self.meeting = etcd or meeting
        self.ports = [free_port() for _ in range(3)]
        self.said: list[str] = []
        """What the workers logged."""
        self.shepherds: list[Any] = [self.start(number) for number in range(3)]
        self.crew = [self.worker(name) for name in "ab"]

    def own(self, number: int) -> Path:
        """The folder of a shepherd."""
        return self.folder / f"shepherd{number}"

    def ledger(self, number: int) -> Path:
        """Its ledger."""
        return self.own(number) / "run" / "ledger.jsonl"

    def start(self, number: int) -> Any:
        """A shepherd's process."""
        return self._children.start(
            MODULE,
            str(self.own(number)),
            self.meeting,
            str(number),
            str(self.ports[number]),
            str(self.rounds),
        )

    def worker(self, name: str) -> Background[str]:
        """A worker that knows all shepherds."""
        (first, *others) = [("127.0.0.1", port) for port in self.ports]
        worker = Worker(
            Identity(name, first[0], first[1], others=tuple(others)),
            Endpoint.listen("127.0.0.1:0"),
            lambda content: BigramTrainer(0.01),
            lambda text: self.said.append(f"{name}: {text}"),
            Timing(silence=3.0),
        )
        return Background(worker.run)

    def records(self, number: int) -> list[dict[str, Any]]:
        """The lines that a shepherd has so far."""
        try:
            return read(self.ledger(number))[0]
        except PcpError:
            return []

    def committed(self) -> dict[int, int]:
        """The last committed round in the ledger of each."""
        found = {}
        for number in range(3):
            rounds = [r["round"] for r in self.records(number) if r["kind"] == "commit"]
            found[number] = max(rounds, default=0)
        return found

    def leader(self) -> int | None:
        """Whose address the newest term's line came from: who says it leads."""
        said = [
            (int(line.rsplit(" ", 1)[1]), number)
            for number, child in enumerate(self.shepherds)
            if child.popen.poll() is None
            for line in child.text.splitlines()
            if "this shepherd leads in term" in line
        ]
        return max(said)[1] if said else None

    def wait(self, what, seconds: float = 60.0) -> float:
        """Until it is so; how many seconds that took."""
        began = time.monotonic()
        while not what():
            if time.monotonic() - began > seconds:
                texts = [child.text[-3000:] for child in self.shepherds]
                ends = [worker.error for worker in self.crew if not worker.is_alive()]
                said = self.said[-50:]
                raise AssertionError(f"waited in vain: {texts}, {said}, {ends}")
            threading.Event().wait(0.02)
        return time.monotonic() - began

    def strike(self, rounds: int = 2) -> float:
        """Kill who leads, with its folder; seconds until another commits a round.

        Then one comes in its place with nothing, and gets what the others have.
        """
        begun = max(self.committed().values())
        self.wait(lambda: max(self.committed().values()) >= begun + rounds)
        victim = self.leader()
        assert victim is not None
        self.shepherds[victim].kill()
        before = max(self.committed().values())
        shutil.rmtree(self.own(victim))
        took = self.wait(lambda: max(self.committed().values()) > before)
        self.shepherds[victim] = self.start(victim)
        self.wait(lambda: self.committed()[victim] >= before)
        return took
