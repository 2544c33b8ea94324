"""Futures of operations under way."""

from concurrent.futures import Future
from typing import Any, Protocol

from pcp.errors import Timeout, UsageError


class CompletionThread(Protocol):
    """The thread that completes operations: of a loop, or of an engine."""

    @property
    def inside(self) -> bool:
        """Whether the caller runs in that thread."""
        ...


class FailureObserver(Protocol):
    """A group or engine that notes whether the caller knows of a failure."""

    heard: bool


class Pending(Future):
    """An operation under way; `result` waits for it.

    A callback runs in the thread that completes the operation, or at once when it is
    done: it can start operations, and not wait for one of the same communicator.
    """

    by: CompletionThread | None = None
    """The thread that completes the operation."""
    of: FailureObserver | None = None
    """The group or engine that notes whether the caller knows of a failure."""

    def result(self, timeout: float | None = None) -> Any:
        """The operation's value; raises its fault, or Timeout after `timeout` s.

        The operation goes on when only this wait timed out. UsageError in the thread
        that has to complete the operation: the wait would never end.
        """
        self._check_waiting(timeout)
        try:
            return self._awaited(timeout)
        except BaseException:
            self._note()
            raise
        finally:
            # The fault's trace refers to this frame: it must not refer to the fault, or
            # the arrays of all callers stay until the garbage collector runs.
            del self

    def _awaited(self, timeout: float | None) -> Any:
        try:
            return super().result(timeout)
        except TimeoutError:
            if self.done():  # just now; or the operation's own fault is a TimeoutError
                return super().result(0)
            message = f"no result after {timeout} s; the operation is still under way"
            raise Timeout(message) from None
        finally:
            del self

    def cancel(self) -> bool:
        """Refuse, as `Future` does for a call that runs: False, and nothing changes.

        The other members may have seen the operation happen, and its arrays are in use
        until it has ended on all. `abort` of the communicator ends all of them.
        """
        return False

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The operation's fault, or None; waits as `result` does."""
        self._check_waiting(timeout)
        try:
            return super().exception(timeout)
        finally:
            self._note()

    def _note(self) -> None:
        """Note that the caller knows of a failure; not in the completing thread."""
        inside = self.by is not None and self.by.inside
        if not inside and self.done():
            self.told()

    def told(self) -> None:
        """Note that the caller knows of a failure, but not by this future."""
        if self.of is not None and self.done() and super().exception(0) is not None:
            self.of.heard = True

    def _check_waiting(self, timeout: float | None) -> None:
        if timeout != 0 and self.by and self.by.inside and not self.done():
            raise UsageError(
                "a callback of an operation waits for another one, which cannot go on "
                "meanwhile: give that one a callback too, or wait in another thread"
            )
