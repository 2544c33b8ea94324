"""A member of an engine: one thread, calls in order, the first fault.

The libraries do not support several threads, nor calls after a failure.
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock, get_ident
from typing import Any, Self

from pcp.errors import CollectiveAborted, RuntimeFault, Timeout, UsageError, counted
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.communicator.communicator import Seconds, seconds
from pcp.runtime.group.leaving import DRAIN_SECONDS


class Member:
    """A member of an engine, and the thread that carries out all its calls."""

    name = ""
    """The scheme of the engine's addresses."""

    def __init__(self, rank: int, world_size: int, timeout: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        """The time limit in seconds of operations without one of their own."""
        self.fault: RuntimeFault | None = None
        """The fault after which the engine cannot be used; None while it works."""
        self._ident = 0
        self._thread = ThreadPoolExecutor(1, f"pcp-{self.name}", self._begin)
        self._lock = Lock()
        self._asked: set[Pending] = set()
        """Calls that are not finished."""
        self.heard = False
        """Whether the caller has read a failed future."""
        self._failed: BaseException | None = None
        """The first failure."""
        self._closed = False

    def close(self, timeout: Seconds = None) -> None:
        """Close the engine, once the earlier calls are finished.

        As `Communicator.close`: after `timeout` seconds, by default the engine's, up
        to a minute, it raises with the number of unfinished calls, which go on in the
        engine's thread; and it raises if a call failed and the caller read no failed
        future. With `timeout=0` it does not wait.
        """
        if self.inside:
            raise UsageError(f"a callback closes {self.name}; do it in another thread")
        patience = min(self.timeout, DRAIN_SECONDS)
        if timeout is not None:
            patience = seconds(timeout)
        with self._lock:
            if self._closed:
                return
            self._closed = True
            asked = list(self._asked)
        ended = self._thread.submit(self._end)
        self._thread.shutdown(wait=False)
        if patience > 0:
            wait([*asked, ended], patience)
            self._check_finished(asked)

    @property
    def inside(self) -> bool:
        """Whether the caller runs in the engine's thread."""
        return get_ident() == self._ident

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(timeout=None if kind is None else 0)

    def _check_finished(self, asked: list[Pending]) -> None:
        """Raise if a call failed and the caller read no failed future."""
        left = sum(not pending.done() for pending in asked)
        if left:
            raise Timeout(f"{self.name}: left with {counted(left, 'call')} under way")
        if self._failed is not None and not self.heard:
            told = f"{self.name}: left before it had happened: {self._failed}"
            raise CollectiveAborted(told) from self._failed

    def _begin(self) -> None:
        self._ident = get_ident()

    def _end(self) -> None:
        """Close the library's group; in the thread."""
        raise NotImplementedError

    def _do(self, run: Callable[[float], Any], timeout: Seconds) -> Pending:
        """Run a task in the engine's thread, after the earlier ones."""
        pending = Pending()
        pending.by, pending.of = self, self
        pending.add_done_callback(self._asked.discard)
        patience = self.timeout if timeout is None else seconds(timeout)
        with self._lock:
            if self._closed:
                raise CollectiveAborted(f"this member closed its {self.name}")
            self._asked.add(pending)
            self._thread.submit(self._run, pending, run, patience)
        return pending

    def _run(
        self, pending: Pending, run: Callable[[float], Any], patience: float
    ) -> None:
        try:
            if self.fault is not None:
                raise CollectiveAborted(f"{self.name} is of no use after: {self.fault}")
            pending.set_result(run(patience))
        except BaseException as error:
            if isinstance(error, RuntimeFault) and self.fault is None:
                self.fault = error
            self._failed = self._failed or error
            pending.set_exception(error)


@contextlib.contextmanager
def translated(kinds: tuple[type[Exception], ...], tell: Callable) -> Iterator[None]:
    """Inside, an engine's errors of these kinds become what `tell` makes of them."""
    try:
        yield
    except kinds as error:
        raise tell(error) from error
