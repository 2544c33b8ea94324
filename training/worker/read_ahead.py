"""Batches that threads read ahead of the steps that use them."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from pcp.training.data.dataset import Batch

Read = Callable[[np.ndarray], Batch]


class ReadAhead:
    """The batches of a list of positions, in its order.

    `readers` threads read at most `ahead` batches that are not used yet. An error of
    reading is raised where the batch is taken. Without readers nothing is read ahead:
    batches that are in memory need no thread.
    """

    def __init__(self, read: Read, *, ahead: int, readers: int) -> None:
        self._read, self._ahead = read, ahead if readers else 0
        self._pool = ThreadPoolExecutor(readers or 1, thread_name_prefix="pcp-data")
        self._due: Iterator[np.ndarray] = iter(())
        self._begun: deque[Future[Batch]] = deque()
        self.waited = 0.0
        """Seconds for which `take` has waited since `begin`."""

    def begin(self, positions: Sequence[np.ndarray]) -> None:
        """Begin to read batches of these positions, in place of the earlier list."""
        self._drop()
        self._due, self.waited = iter(positions), 0.0
        for _ in range(self._ahead):
            self._go_on()

    def take(self) -> Batch:
        """The next batch; `IndexError` after the last."""
        if not self._ahead:
            return self._read_now()
        began = time.monotonic()
        batch = self._begun.popleft().result()
        self.waited += time.monotonic() - began
        self._go_on()
        return batch

    def close(self) -> None:
        """Stop reading; a batch that is being read is finished."""
        self._drop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read_now(self) -> Batch:
        positions = next(self._due, None)
        if positions is None:
            raise IndexError("no batch is left")
        return self._read(positions)

    def _go_on(self) -> None:
        positions = next(self._due, None)
        if positions is not None:
            self._begun.append(self._pool.submit(self._read, positions))

    def _drop(self) -> None:
        for future in self._begun:
            future.cancel()
        self._begun.clear()
        self._due = iter(())
