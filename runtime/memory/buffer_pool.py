"""Bytes of arrays, and leases of scratch arrays for operations (`arena`)."""

import math
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError
from pcp.runtime.memory.arena import LIMIT, PRIVATE, Arena


def octets(array: NDArray) -> memoryview:
    """The bytes of a C-contiguous array of any dtype, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def spans(given: NDArray | Sequence[NDArray] | None) -> list[tuple[int, int]]:
    """The addresses of C-contiguous arrays: the first, and the one behind the last."""
    if given is None:
        return []
    arrays = [given] if isinstance(given, np.ndarray) else given
    starts = [array.__array_interface__["data"][0] for array in arrays]
    return [(at, at + array.nbytes) for at, array in zip(starts, arrays, strict=True)]


def overlap(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Whether two lists of `spans` have memory in common."""
    return any(a < d and c < b for a, b in some for c, d in others)


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
    # Slices and sums of a np.matrix or a np.memmap have that class again.
    return array if type(array) is np.ndarray else array.view(np.ndarray)


class BufferPool:
    """Scratch arrays in private memory; at most `limit` bytes are kept free."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._arena = Arena(PRIVATE, limit)

    def new(self, shape: Sequence[int], dtype: np.dtype) -> NDArray:
        """An uninitialised array whose memory comes back when its last view is gone.

        A link that still writes into it has such a view.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < PRIVATE.grain:
            return np.empty(shape, dtype)
        raw = self._leased(nbytes)
        # All views of it refer to this one, and none to the array it is made of.
        whole = np.frombuffer(raw.data, np.uint8)
        weakref.finalize(whole, _back, weakref.ref(self._arena), raw).atexit = False
        return whole[:nbytes].view(dtype).reshape(shape)

    def take(self, count: int, dtype: np.dtype) -> NDArray:
        """An uninitialised flat array of `count` elements, until `give`."""
        nbytes = count * dtype.itemsize
        return self._leased(nbytes)[:nbytes].view(dtype)

    def give(self, array: NDArray) -> None:
        """Return an array from `take`; the caller must not use it any more."""
        raw = array
        while isinstance(raw.base, np.ndarray):
            raw = raw.base
        self._arena.give(raw)

    def _leased(self, nbytes: int) -> NDArray:
        raw = self._arena.lease(nbytes)
        assert raw is not None, "there may be any number of private blocks"
        return raw


def _back(arena: "weakref.ref[Arena[NDArray]]", raw: NDArray) -> None:
    # The group may be closed by now, and the memory of its pool released.
    if (kept := arena()) is not None:
        kept.drop(raw)


class ScratchLease:
    """The scratch arrays of one operation, until it is over."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._taken: list[NDArray] = []

    def take(self, count: int, dtype: np.dtype) -> NDArray:
        """As `BufferPool.take`."""
        self._taken.append(self._pool.take(count, dtype))
        return self._taken[-1]

    def settle(self, *, clean: bool) -> None:
        """Give the arrays back when the operation is over.

        Without `clean` a link might still write to them: they are dropped instead.
        """
        taken, self._taken = self._taken, []
        if clean:
            for array in taken:
                self._pool.give(array)
