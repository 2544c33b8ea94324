"""Arrays in memory that other processes of this machine can map.

    gradient = shared_empty((1 << 24,), np.float32)
    total = comm.all_reduced(gradient)

A shared array is used like any other, and with any group. The other members read the
operands of a zero-copy reduce in such memory without a copy, and the results lie there
too.

When no view of an array is left its memory is kept for the next array, up to a limit.
The garbage collector may call the callback at any point of any thread, so the callback
takes no lock.

A forked process shares the arrays that it inherits with its parent, as any shared
memory; new arrays are its own.
"""

import math
import operator
import os
import weakref
from collections.abc import Sequence
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pcp.runtime.memory.arena import LIMIT, Arena
from pcp.runtime.memory.shared_segment import SHARED, SMALLEST, Segment, address


class Offer(NamedTuple):
    """An address by which another process of this machine maps an array."""

    number: int
    at: int
    pid: int
    fd: int
    nonce: bytes


class Place(NamedTuple):
    """The place of an array: `offset` bytes into the segment with this number."""

    number: int
    segment: Segment
    offset: int
    array: NDArray

    @property
    def offer(self) -> Offer:
        """The offer by which another process maps it."""
        fd, nonce = self.segment.descriptor, self.segment.nonce
        assert fd is not None, "the owner says where it is"
        return Offer(self.number, self.offset, os.getpid(), fd, nonce)


class _Watch(weakref.ref):
    """Calls back when the last view of the array with this number is gone."""

    __slots__ = ("number",)
    number: int


class SharedArrays:
    """The arrays of one process; safe to use from several threads."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self.forget()

    def forget(self) -> None:
        """Forget all arrays: after a fork they belong to the parent process."""
        self._arena = Arena(SHARED, self._limit)
        self._used: dict[int, Segment] = {}
        self._watched: dict[int, _Watch] = {}
        self._spoilt: set[int] = set()

    def empty(
        self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = "f4"
    ) -> NDArray:
        """An array of this shape, uninitialised.

        A small array is an ordinary one, which all calls take too; so is any array
        where the system has no shared memory, or no more of it.
        """
        return self.placed(shape, dtype)[0]

    def placed(
        self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike
    ) -> tuple[NDArray, Place | None]:
        """As `empty`, with the place of the array; None for an ordinary one."""
        kind = np.dtype(dtype)
        lengths = _lengths(shape)
        nbytes = math.prod(lengths) * kind.itemsize
        segment = None
        if nbytes >= SMALLEST and not kind.hasobject:
            segment = self._arena.lease(nbytes)
        if segment is None:
            return np.empty(lengths, kind), None
        number = segment.number
        self._used[number] = segment
        # All views of it refer to this one, and none to the array that the segment has.
        whole = np.frombuffer(segment.octets.data, np.uint8)
        watch = self._watched[number] = _Watch(whole, self._back)
        watch.number = number
        array = whole[:nbytes].view(kind).reshape(lengths)
        return array, Place(number, segment, 0, array)

    def place(self, array: NDArray) -> Place | None:
        """The place of a C-contiguous array; None in ordinary memory."""
        start = address(array)
        for number, segment in self._used.copy().items():
            if 0 <= start - segment.address <= segment.nbytes - array.nbytes:
                return Place(number, segment, start - segment.address, array)
        return None

    @property
    def plenty(self) -> bool:
        """Whether half of the arrays that there may be are not in use.

        An array that lasts beyond an operation takes one of these.
        """
        most = SHARED.most
        return most is None or len(self._used) < most // 2

    @property
    def live(self) -> list[int]:
        """The numbers of the segments that may be offered, again too."""
        return [*self._used.copy(), *(segment.number for segment in self._arena.free)]

    def spoil(self, place: Place) -> None:
        """Never use the memory at `place` again: peers may still write there."""
        self._spoilt.add(place.number)
        place.segment.withdraw()

    def _back(self, watch: _Watch) -> None:
        """The last view is gone. Takes no lock: no step of it can be split."""
        number = watch.number
        del self._watched[number]
        spoilt = number in self._spoilt
        self._spoilt.discard(number)
        self._arena.drop(self._used.pop(number), reusable=not spoilt)


class PeerMappings:
    """The segments of the other members' arrays that a member has mapped."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, Segment]] = {}

    def reached(self, peers: Sequence[int]) -> bool:
        """Whether a segment of each of these peers was mapped before."""
        return all(peer in self._known for peer in peers)

    def keep(self, peer: int, live: set[int]) -> None:
        """Forget the segments that a peer no longer offers."""
        known = self._known.get(peer, {})
        for number in known.keys() - live:
            del known[number]

    def map(
        self, peer: int, offer: Offer, nbytes: int, *, writable: bool = False
    ) -> Segment | None:
        """The memory in which a peer offers so many bytes; None if out of reach."""
        least = offer.at + nbytes
        known = self._known.get(peer, {}).get(offer.number)
        if known is None or known.nonce != offer.nonce or writable > known.writable:
            nonce = offer.nonce.hex()
            said = {"pid": offer.pid, "fd": offer.fd, "nonce": nonce}
            known = Segment.map(said, least, writable=writable)
        if known is None or known.nbytes < least:
            return None
        self._known.setdefault(peer, {})[offer.number] = known
        return known

    def close(self) -> None:
        """Forget all mappings."""
        self._known.clear()


def _lengths(shape: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    # A tuple first: an isinstance of a protocol takes longer than all else here.
    if not isinstance(shape, tuple) and isinstance(shape, SupportsIndex):
        return (operator.index(shape),)
    return tuple(map(operator.index, shape))


ARRAYS = SharedArrays()
"""The shared arrays of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ARRAYS.forget)
shared_empty = ARRAYS.empty
