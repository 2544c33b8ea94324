"""What workers hold, against what the ledger committed, while `faults` kills them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self

from faults_run import END_SECONDS

from pcp.errors import PcpError
from pcp.runtime import fetch_snapshot
from pcp.training.storage import safetensors_io
from pcp.training.storage.island_parts import joined_digest
from pcp.training.storage.state_names import shared_part


class Watched(Protocol):
    """What an audit asks of a `faults_run.Run`."""

    def status(self) -> dict | None:
        """What the shepherd says; None where it does not answer."""
        ...

    def digests(self) -> dict[int, set[str]]:
        """Digests that the ledger committed, by round."""
        ...


class Audit:
    """Compares, time and again, what workers hold with what the ledger committed."""

    pause = 0.25

    def __init__(self, run: Watched) -> None:
        self._run = run
        self._held: list[tuple[int, str | None]] = []
        self._ending = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._watching = self._thread.submit(self._watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._ending.set()
        self._thread.shutdown()

    def close(self) -> int:
        """How many states were looked at, one at least; they must be right."""
        self._ending.set()
        self._watching.result(END_SECONDS)
        digests = self._run.digests()
        for reached, digest in self._held:
            assert digest in digests.get(reached, ()), f"round {reached}: another state"
        assert self._held, "no state was looked at"
        return len(self._held)

    def _watch(self) -> None:
        while not self._ending.wait(self.pause):
            self._look()
        self._look()  # once at least, when all that were killed are back

    def _look(self) -> None:
        status = self._run.status()
        for worker in status["workers"] if status else ():
            ranks = worker.get("ranks") or [worker]
            held = [self._state(rank["address"]) for rank in ranks]
            reached = {round_ for round_, _ in held}
            # Round 0 is in no ledger; a commit reaches one rank before another.
            if len(reached) == 1 and (round_ := reached.pop()):
                digest = joined_digest([digest for _, digest in held])
                self._held.append((round_, digest))

    def _state(self, address: str) -> tuple[int, str | None]:
        """The round and the digest of what a process holds; 0 if that is nothing."""
        try:
            reached, arrays = fetch_snapshot(address, 1.0)
        except PcpError:
            return 0, None  # it is dead, or holds nothing yet
        digest = safetensors_io.digest(shared_part(arrays)) if reached else None
        return reached, digest
