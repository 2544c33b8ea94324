"""Background exchanges: exchanges beside the inner steps.

The functions of one program run one after the other. So a background exchange runs in a
second instance of the same module on the same device, in its own thread. Exchanges run
one at a time, in the order of the calls, which is the same on all members.
"""

import gc
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from pcp.training.trainer.functions import Functions, Key, Values

Results = Future[dict[Key, Any]]


class BackgroundExchange:
    """A second instance of a program, and the thread in which it is called."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._pool = ThreadPoolExecutor(1, "pcp-background")
        self._asked: list[Results] = []

    def join(self, communicator: Any) -> None:
        """Use this group for exchanges; those of the old group have ended."""
        self.settle()
        self._functions.program.communicator = communicator

    def call(self, name: str, values: Values) -> Results:
        """Begin a call of a function with these values; a future of its results."""
        self._asked = [future for future in self._asked if not future.done()]
        self._asked.append(self._pool.submit(self._functions, name, values))
        return self._asked[-1]

    def settle(self) -> None:
        """Wait until every call has ended, with or without an error.

        A call ends by its group's deadline, and at once when the group is closed.
        """
        wait(self._asked)
        self._asked.clear()

    def close(self) -> None:
        """Release the program; its group is closed before."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._asked = []  # their results are on the device
        self._functions.close()
        # A failed exchange leaves an error whose frames hold arrays, in a cycle: if
        # that outlived the device, the process would end in a crash.
        gc.collect()
