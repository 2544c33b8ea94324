"""A member's turn at a foreign engine: one thread, calls in order, the first fault.

Engines are not made for several threads, nor for going on after a failure.
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, get_ident
from typing import Any, Self

from pcp.errors import CollectiveAborted, RuntimeFault
from pcp.runtime.communicator import Seconds, seconds
from pcp.runtime.operation import Pending


class Member:
    """Who takes part, and the thread in which all its calls are carried out."""

    name = ""
    """As in the address."""

    def __init__(self, rank: int, world_size: int, timeout: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        """Deadline in seconds for operations that are not given one."""
        self.fault: RuntimeFault | None = None
        """Why the engine can be used no more."""
        self._ident = 0
        self._thread = ThreadPoolExecutor(1, f"pcp-{self.name}", self._begin)
        self._lock = Lock()
        self._closed = False

    def close(self) -> None:
        """Let go of the engine; calls that have been made are finished first."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._thread.submit(self._end)
        self._thread.shutdown()

    @property
    def inside(self) -> bool:
        """Whether the caller runs in the engine's thread."""
        return get_ident() == self._ident

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._ident = get_ident()

    def _end(self) -> None:
        """Let go of everything; in the thread."""
        raise NotImplementedError

    def _do(self, run: Callable[[float], Any], timeout: Seconds) -> Pending:
        """Run it in the engine's thread, after what was called before."""
        pending = Pending()
        pending.by = self
        patience = self.timeout if timeout is None else seconds(timeout)
        with self._lock:
            if self._closed:
                raise CollectiveAborted(f"this member closed its {self.name}")
            self._thread.submit(self._run, pending, run, patience)
        return pending

    def _run(
        self, pending: Pending, run: Callable[[float], Any], patience: float
    ) -> None:
        if not pending.set_running_or_notify_cancel():
            return
        try:
            if self.fault is not None:
                raise CollectiveAborted(f"{self.name} is of no use after: {self.fault}")
            pending.set_result(run(patience))
        except BaseException as error:
            if isinstance(error, RuntimeFault) and self.fault is None:
                self.fault = error
            pending.set_exception(error)


@contextlib.contextmanager
def translated(kinds: tuple[type[Exception], ...], tell: Callable) -> Iterator[None]:
    """Inside, an engine's errors of these kinds become what `tell` makes of them."""
    try:
        yield
    except kinds as error:
        raise tell(error) from error
