"""A reduction into a new array, of members that all are on one machine: no copies.

What every member reduces lies in memory that the others have mapped (`shared_arrays`),
and so does the new array that it gets. Every member reduces its own chunk straight from
the others' arrays, and writes the sum into the results of all:

    result at rank 1       | chunk 0        | chunk 1          | chunk 2        |
                           | written by 0   | by itself        | by 2           |

That is half as many ways through memory as `shared_reduce` needs, which has to leave
the caller's array alone until all have agreed. Here nobody has the result before. Who
has heard from all that their chunks are written votes; a result that might still be
written to, because the operation was given up, is nobody's and is never used again.

What is small every member reduces itself (`StraightEager`), before it votes: what it
reads is another member's own array, which that member may change once it has committed.

An array in ordinary memory is copied first, in the thread that calls: without the own
chunk, which nobody else reads.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import ProtocolError
from pcp.runtime.framing import Header
from pcp.runtime.shared_arrays import ARRAYS
from pcp.runtime.shared_reduce import is_small
from pcp.runtime.through_memory import REDUCED, WORD, ThroughMemory

TURN_BYTES = 4 << 20
"""Reduced in one turn of the loop, which serves others in between."""


class StraightReduce(ThroughMemory):
    """`visible` is what the others read of the source; `target` becomes the result."""

    way = "straight"

    def __init__(
        self, *args: Any, visible: NDArray, target: NDArray, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._visible = visible
        self._target = target
        self._theirs: dict[int, NDArray] = {}
        self._results: dict[int, NDArray[np.uint8]] = {}
        self._reduced = 0
        self._summed: set[int] = set()

    # The arrays.

    def _offer(self) -> dict[str, Any]:
        array, result = ARRAYS.place(self._visible), ARRAYS.place(self._target)
        said: dict[str, Any] = {"maps": False, "live": ARRAYS.live}
        if array is not None and result is not None:
            said |= {"array": array.offer, "result": result.offer}
            said["maps"] = self._commons.arrays.reached(self.peers)
        return said

    def _other_way(self, peer: int, said: dict[str, Any]) -> None:
        self._commons.heed(peer, said)

    def _map(self, peer: int, said: dict[str, Any]) -> None:
        reach, nbytes = self._commons.arrays, self._plain.nbytes
        live, array, result = _parsed(said)
        reach.keep(peer, live)
        if array is None or result is None:
            return
        theirs = reach.map(peer, array, nbytes, writable=False)
        room = reach.map(peer, result, nbytes, writable=True)
        if theirs is None or room is None:
            self._unreachable = True
        else:
            self._theirs[peer] = theirs.view(self._dtype)
            self._results[peer] = room

    def _unmapped(self) -> set[int]:
        return set(self.peers) - set(self._theirs)

    def _start(self) -> None:
        """There is nothing to do without the others."""

    # Reducing the own chunk.

    def _proceed(self) -> None:
        self._reduce_on()

    def _reduce_on(self) -> None:
        """As much as a turn of the loop may take."""
        if self.over:
            return
        start, stop = self._own
        turn = max(1, TURN_BYTES // self._dtype.itemsize)
        first = start + self._reduced
        last = min(first + turn, stop)
        self._reduce_range(self._rank, first, last, [*self._results.values()])
        self._reduced = last - start
        if last < stop:
            self.group.later(0.0, self._reduce_on)
            return
        for peer in self.peers:
            self.send_data(peer, REDUCED, 0, WORD)

    def _reduce_range(
        self, owner: int, first: int, last: int, theirs: Sequence[NDArray[np.uint8]]
    ) -> None:
        """Elements of the chunk of `owner`, into the own result and these of others."""
        arrays = {**self._theirs, self._rank: self._plain}
        parts = [arrays[rank] for rank in self._behind(owner)]
        out, item = self._target.reshape(-1), self._dtype.itemsize
        for a, b in self._blocks(first, last):
            self._reduce_block([part[a:b] for part in parts], out[a:b])
            for result in theirs:
                np.copyto(result[a * item : b * item], out[a:b].view(np.uint8))

    def _right(self, peer: int, header: Header) -> bool:
        return header.step == REDUCED and peer not in self._summed

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        if self._through == "ring":
            super().arrived(peer, header, payload)
        else:
            self._summed.add(peer)

    # The end.

    def complete(self) -> bool:
        if self._through != "memory":
            return super().complete()
        start, stop = self._own
        return self._reduced == stop - start and self._summed == set(self.peers)

    def commit(self) -> Any:
        return self._target if self._through == "memory" else super().commit()

    def release(self) -> None:
        super().release()
        if not self.committed:
            ARRAYS.spoil(self._target)
        self._theirs.clear()
        self._results.clear()

    def _moved(self) -> tuple[dict[int, int], dict[int, int]]:
        written = self._reduced * self._dtype.itemsize
        read = dict.fromkeys(self.peers, written)
        return dict.fromkeys(self.peers, written), read


class StraightEager(StraightReduce):
    """The same for arrays so small that a word costs more than a sum."""

    def _proceed(self) -> None:
        for owner, (start, stop) in enumerate(self._chunks):
            self._reduce_range(owner, start, stop, ())
        self._reduced = self._plain.size

    def _right(self, peer: int, header: Header) -> bool:
        return False

    def complete(self) -> bool:
        if self._through != "memory":
            return super().complete()
        return self._reduced == self._plain.size


def _parsed(
    said: dict[str, Any],
) -> tuple[set[int], dict[str, Any] | None, dict[str, Any] | None]:
    """Live numbers, array and result in a peer's opening."""
    try:
        live, offers = said["live"], (said.get("array"), said.get("result"))
        numbers = [
            *live,
            *(offer[key] for offer in offers if offer for key in ("id", "at")),
        ]
        if all(type(n) is int and n >= 0 for n in numbers):
            return set(live), *offers
    except (AttributeError, TypeError, KeyError):
        pass
    raise ProtocolError("an OPEN frame with nonsense about memory")


def visible(array: NDArray, own: tuple[int, int] | None) -> NDArray:
    """`array`, or what others read of a copy of it, in memory that they can map.

    `own` is the range of elements that only this member reads.
    """
    if ARRAYS.place(array) is not None:
        return array
    flat, copy = array.reshape(-1), ARRAYS.empty((array.size,), array.dtype)
    start, stop = own or (0, 0)
    np.copyto(copy[:start], flat[:start])
    np.copyto(copy[stop:], flat[stop:])
    return copy


def straight(nbytes: int, members: int) -> type[StraightReduce]:
    """How a reduction of this size goes."""
    return StraightEager if is_small(nbytes, members) else StraightReduce
