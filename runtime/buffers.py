"""Bytes of arrays, and scratch memory that is used again.

Fresh memory costs a page fault every 4 KiB, which for large arrays takes as
long as moving the bytes; operations therefore borrow scratch from a pool.
"""

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError

_GRAIN = 64 << 10


def octets(array: NDArray) -> memoryview:
    """The bytes of a C-contiguous array, without a copy, whatever its dtype."""
    return array.reshape(-1).view(np.uint8).data


def checked(array: NDArray, what: str, *, writable: bool = False) -> NDArray:
    """`array`, as a plain one, if a collective can use its memory, else UsageError."""
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{what} takes a numpy array, not {type(array).__name__}")
    if array.dtype.hasobject or not array.dtype.isnative:
        raise UsageError(f"{what} takes plain little-endian data, not {array.dtype}")
    if not array.flags.c_contiguous:
        raise UsageError(f"{what} takes a C-contiguous array; use ascontiguousarray")
    if writable and not array.flags.writeable:
        raise UsageError(f"{what} writes its result in place: the array is read-only")
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(f"{what} knows no masks; use array.filled(value)")
    # A matrix or a memmap would go on as what it is in slices and sums.
    return array if type(array) is np.ndarray else array.view(np.ndarray)


class BufferPool:
    """Scratch memory by size; keeps at most `limit` bytes of free buffers."""

    def __init__(self, limit: int = 512 << 20) -> None:
        self._limit = limit
        self._free: dict[int, list[NDArray]] = {}
        self._kept = 0
        self._dropped: deque[NDArray] = deque()
        """Came back since the last `take`; not in `_kept` yet."""
        self._lock = threading.Lock()

    def new(self, shape: Sequence[int], dtype: np.dtype) -> NDArray:
        """An uninitialised array whose memory comes back when its last view is gone.

        A link that still writes into it has such a view.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < _GRAIN:
            return np.empty(shape, dtype)
        lent = self.take(nbytes, np.dtype(np.uint8))
        # All views of it refer to this one, and none to the array it is taken from.
        whole = np.frombuffer(lent.data, np.uint8)
        weakref.finalize(whole, self._drop, lent).atexit = False
        return whole.view(dtype).reshape(shape)

    def _drop(self, lent: NDArray) -> None:
        """A garbage collector calls it at any point of any thread: takes no lock."""
        dropped = sum(array.nbytes for array in tuple(self._dropped))
        if self._kept + dropped + lent.nbytes <= self._limit:
            self._dropped.append(lent)

    def take(self, count: int, dtype: np.dtype) -> NDArray:
        """An uninitialised flat array of `count` elements."""
        nbytes = count * dtype.itemsize
        size = -(-max(nbytes, 1) // _GRAIN) * _GRAIN
        with self._lock:
            while self._dropped:
                self._keep(self._dropped.popleft())
            shelf = self._free.get(size)
            raw = shelf.pop() if shelf else None
            self._kept -= size if raw is not None else 0
        if raw is None:
            raw = np.empty(size, np.uint8)
        return raw[:nbytes].view(dtype)

    def give(self, array: NDArray) -> None:
        """Return an array from `take`; nobody may use it any more."""
        with self._lock:
            self._keep(array)

    def _keep(self, array: NDArray) -> None:
        raw = array
        while isinstance(raw.base, np.ndarray):
            raw = raw.base
        if self._kept + raw.nbytes <= self._limit:
            self._free.setdefault(raw.nbytes, []).append(raw)
            self._kept += raw.nbytes


class Loan:
    """What one operation has borrowed from a pool."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._taken: list[NDArray] = []

    def take(self, count: int, dtype: np.dtype) -> NDArray:
        """As `BufferPool.take`."""
        self._taken.append(self._pool.take(count, dtype))
        return self._taken[-1]

    def settle(self, *, clean: bool) -> None:
        """The operation is over. Its buffers go back, unless something might still
        write to them: then nobody else may have them."""
        taken, self._taken = self._taken, []
        if clean:
            for array in taken:
                self._pool.give(array)
