"""Arrays in memory that other processes of this machine can map.

    gradient = shared_empty((1 << 24,), np.float32)
    total = comm.all_reduced(gradient)

They are arrays like any other. What is reduced into a new array (`straight_reduce`)
and lies in such memory needs no copy to be read by the others, and what comes out
lies there again. They belong to no group: an array can be used with any.

An array's memory is used for another one when no view of it is left anywhere. That is
noticed by whoever asks for memory next: a garbage collector may run at any point of any
thread, and so may take no lock.
"""

import itertools
import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pcp.runtime.segments import Segment

SMALLEST = 64 << 10
"""Below this many bytes an array is an ordinary one."""
MOST = 64
"""Arrays of a process, used and kept: each takes a descriptor, of its readers too."""
_GRAIN = 256 << 10
_SPARE = 4
"""Memory may be so many times as large as the array that it is used for."""


@dataclass(frozen=True)
class Place:
    """Where an array lies: `offset` bytes into the memory with this number."""

    number: int
    segment: Segment
    offset: int

    @property
    def offer(self) -> dict[str, Any]:
        """What lets another process of this machine find it."""
        return {"id": self.number, "at": self.offset, **self.segment.offer}


class SharedArrays:
    """The arrays of one process; safe to use from several threads."""

    def __init__(self, limit: int = 512 << 20) -> None:
        self._limit = limit
        """Bytes kept that no array uses."""
        self._numbers = itertools.count()
        self._used: dict[int, Segment] = {}
        self._free: dict[int, Segment] = {}
        self._spoilt: set[int] = set()
        self._dropped: deque[int] = deque()
        """Numbers of which the last array is gone."""
        self._lock = threading.Lock()

    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike = np.float32
    ) -> NDArray:
        """An array of this shape, uninitialised.

        An ordinary one, which all calls take as well, if it is small, or if the system
        has no such memory or no more of it.
        """
        kind = np.dtype(dtype)
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(lengths) * kind.itemsize
        found = None
        if nbytes >= SMALLEST and not kind.hasobject:
            found = self._take(nbytes) or self._make(nbytes)
        if found is None:
            return np.empty(lengths, kind)
        number, segment = found
        # All views of it refer to this one, and none to the array that the segment has.
        whole = np.frombuffer(segment.octets.data, np.uint8)
        weakref.finalize(whole, self._dropped.append, number).atexit = False
        return whole[:nbytes].view(kind).reshape(lengths)

    def place(self, array: NDArray) -> Place | None:
        """Where a C-contiguous array lies, if in memory of this kind."""
        start = _address(array)
        for number, segment in self._used.copy().items():
            offset = start - _address(segment.octets)
            if 0 <= offset <= segment.nbytes - array.nbytes:
                return Place(number, segment, offset)
        return None

    @property
    def live(self) -> list[int]:
        """The numbers that may be offered, again too."""
        return [*self._used.copy(), *self._free.copy()]

    def spoil(self, array: NDArray) -> None:
        """Others may still write to this array: its memory is not used again."""
        place = self.place(array)
        if place is not None:
            self._spoilt.add(place.number)
            place.segment.withdraw()

    def _take(self, nbytes: int) -> tuple[int, Segment] | None:
        """The smallest free memory that is large enough and not much too large."""
        most = _SPARE * nbytes + _GRAIN
        with self._lock:
            self._sweep()
            fit = [(s.nbytes, n) for n, s in self._free.items() if s.nbytes >= nbytes]
            taken = None
            if fit and min(fit)[0] <= most:
                number = min(fit)[1]
                segment = self._used[number] = self._free.pop(number)
                taken = number, segment
            while sum(segment.nbytes for segment in self._free.values()) > self._limit:
                self._forget_oldest()
            return taken

    def _make(self, nbytes: int) -> tuple[int, Segment] | None:
        with self._lock:
            while self._free and len(self._used) + len(self._free) >= MOST:
                self._forget_oldest()
            if len(self._used) >= MOST:
                return None
        try:
            segment = Segment.create(-(-nbytes // _GRAIN) * _GRAIN, ready=True)
        except (OSError, AttributeError):
            return None  # not this system, or no memory
        number = next(self._numbers)
        self._used[number] = segment
        return number, segment

    def _sweep(self) -> None:
        """Have back what no array uses any more."""
        while self._dropped:
            number = self._dropped.popleft()
            segment = self._used.pop(number)
            if number in self._spoilt:
                self._spoilt.discard(number)
                segment.close()
            else:
                self._free[number] = segment

    def _forget_oldest(self) -> None:
        self._free.pop(next(iter(self._free))).close()


class Reach:
    """What a member has mapped of the other members' arrays."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, Segment]] = {}

    def reached(self, peers: Sequence[int]) -> bool:
        """Whether something of every one of them was mapped before."""
        return all(peer in self._known for peer in peers)

    def keep(self, peer: int, live: set[int]) -> None:
        """Forget what a peer offers no more."""
        known = self._known.get(peer, {})
        for number in known.keys() - live:
            del known[number]

    def map(
        self, peer: int, offer: dict[str, Any], nbytes: int, *, writable: bool
    ) -> NDArray[np.uint8] | None:
        """The bytes of a `Place` that a peer offers; None if out of reach."""
        number, offset = offer["id"], offer["at"]
        known = self._known.get(peer, {}).get(number)
        if (
            known is None
            or known.nonce != offer.get("nonce")
            or writable > known.writable
        ):
            known = Segment.map(offer, offset + nbytes, writable=writable)
            if known is None:
                return None
            self._known.setdefault(peer, {})[number] = known
        if offset + nbytes > known.nbytes:
            return None
        return known.octets[offset : offset + nbytes]

    def close(self) -> None:
        """Forget everything."""
        self._known.clear()


def _address(array: NDArray) -> int:
    return array.__array_interface__["data"][0]


ARRAYS = SharedArrays()
"""Those of this process."""
shared_empty = ARRAYS.empty
