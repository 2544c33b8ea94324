"""Exchanges that run while the inner steps do.

The functions of one program run one after the other. An exchange that is to take
place beside the inner steps therefore runs in a second instance of the same module on
the same device, in a thread of its own. One at a time, in the order in which they
were asked for, which is the same on all members.
"""

import gc
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from pcp.errors import UsageError


class Beside:
    """A second instance of a program, and the thread in which it is called."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._pool = ThreadPoolExecutor(1, "pcp-beside")
        self._asked: list[Future[Sequence[Any]]] = []
        self._started: Future[Sequence[Any]] | None = None

    def start(self, communicator: Any, name: str, arguments: Sequence[Any]) -> None:
        """Begin the one call of a round, in this group; `finish` waits for it."""
        self.join(communicator)
        self._started = self.call(name, *arguments)

    def finish(self) -> Sequence[Any]:
        """The results of what was started, as often as they are asked for."""
        if self._started is None:
            raise UsageError("nothing was started beside the inner steps")
        return self._started.result()

    def join(self, communicator: Any) -> None:
        """Exchanges go to this group from now on; the old one's have ended."""
        self.settle()
        self._program.communicator = communicator

    def call(self, name: str, *arguments: Any) -> "Future[Sequence[Any]]":
        """Begin `name(*arguments)`; the future's value are its results."""
        self._asked = [future for future in self._asked if not future.done()]
        self._asked.append(self._pool.submit(self._run, name, arguments))
        return self._asked[-1]

    def settle(self) -> None:
        """Wait until every call has ended, well or not.

        Each ends by its group's deadline, and at once when the group is closed.
        """
        wait(self._asked)
        self._asked.clear()

    def close(self) -> None:
        """Let go of the program; its group is closed before."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._asked, self._started = [], None  # their results are on the device
        self._program.close()
        # A failed exchange leaves an error whose frames hold arrays, in a cycle: if
        # that outlived the device, the process would end in a crash.
        gc.collect()

    def _run(self, name: str, arguments: Sequence[Any]) -> Sequence[Any]:
        results = self._program[name](*arguments, device_arrays=True)
        return results if isinstance(results, tuple) else (results,)
