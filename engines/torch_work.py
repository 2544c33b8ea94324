"""The work objects of torch: one or several operations of a communicator."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pcp.errors import Timeout
from pcp.runtime.collectives.pending import Pending

Finish = Callable[[list[Any]], None]

_hooks = ThreadPoolExecutor(32, "pcp-torch")
"""Threads of callbacks of futures: DDP's hooks wait there for more operations, which
would never end in the thread that communicates."""


class PcpWork(dist.Work):
    """A call of torch: done when its operations are, and `finish` wrote their values.

    The future's value is the list of tensors that the call wrote.
    """

    def __init__(
        self,
        pendings: Sequence[Pending],
        tensors: list[torch.Tensor],
        finish: Finish | None = None,
        source: int = -1,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        super().__init__()
        self._pendings = list(pendings)
        self._tensors = tensors
        self._finish = finish
        self._source = source
        self._failed = failed
        self._future: torch.futures.Future = torch.futures.Future()
        self._awaited = False
        """Whether the caller has the future."""
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._left = len(self._pendings)
        self._lock = threading.Lock()
        if not self._pendings:
            self._complete()
        for pending in self._pendings:
            pending.add_done_callback(self._one)

    def _one(self, _: object) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._complete()

    def _complete(self) -> None:
        try:
            values = [pending.result(0) for pending in self._pendings]
            if self._finish is not None:
                self._finish(values)
        except BaseException as error:
            self._error = error
            if self._failed is not None:
                self._failed(error)
        with self._lock:
            if not self._awaited:  # nobody has a callback that could wait here
                self._settle()
            else:
                _hooks.submit(self._settle)
        self._over.set()

    def _settle(self) -> None:
        if self._error is None:
            self._future.set_result(self._tensors)
            return
        if self._awaited:
            self._told()
        self._future.set_exception(self._error)

    def _told(self) -> None:
        """Note that the caller knows of a failure: `close` need not raise it again."""
        for pending in self._pendings:
            pending.exception(0)

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait until it is done; Timeout after `timeout` (no limit when 0)."""
        seconds = timeout.total_seconds() if timeout else 0
        if not self._over.wait(seconds if seconds > 0 else None):
            raise Timeout(f"no result after {seconds:g} s; it is still under way")
        if self._error is not None:
            self._told()
            raise self._error
        if self._awaited:
            self._future.wait()  # what is chained to it now is called at once
        return True

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return self._over.is_set()

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """The fault of the call; None if it succeeded."""
        if self._error is not None:
            self._told()
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors, after `wait`."""
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        """A future of the tensors."""
        with self._lock:
            self._awaited = True
        if self._error is not None:
            self._told()
        return self._future

    def source_rank(self) -> int:
        """The source of a recv."""
        return self._source

    _source_rank = source_rank
