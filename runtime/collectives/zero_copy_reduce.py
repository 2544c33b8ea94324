"""The zero-copy reduce: into a new array, of members on one machine.

The operand of every member lies in memory that the others have mapped
(`shared_arrays`), and so does the new array for its result. Every member reduces its
own chunk straight from the others' operands, and writes the sum into all results:

    result at rank 1       | chunk 0        | chunk 1          | chunk 2        |
                           | written by 0   | by itself        | by 2           |

That is half the memory traffic of `in_place_reduce`, which has to leave the caller's
array alone until all have voted; a new array has no user before. A member votes when
all chunks are written. A result that might still be written to, because the operation
was given up, goes to no caller and is never used again.

A small array is reduced by every member itself (`SmallZeroCopyReduce`), before its
vote.

A member reads the operands of its peers in place, and a peer may change its operand
once the operation has ended for it. As a rule that is when all have voted, and so have
read. But the operation may end without a member that was stopped and counts as dead, or
that is late for an operation that another member has given up. So every result carries
a token of the operation, which is removed when it ends like that, before the end is
reported. A member that finds all tokens in place after reading has read the operands
unchanged, and votes only then.

An operand in ordinary memory is copied first, in the thread that calls, to where the
result will be: an owner reads a piece of its chunk there before it writes the sum over
it. The own chunk, which no peer reads, is not copied.
"""

import itertools
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcp.errors import CollectiveAborted, ProtocolError
from pcp.runtime.collectives.in_place_reduce import IN_PLACE, is_small
from pcp.runtime.collectives.shared_memory_reduce import (
    REDUCED,
    WORD,
    SharedMemoryReduce,
)
from pcp.runtime.memory.shared_arrays import ARRAYS, Offer, Place
from pcp.runtime.memory.shared_segment import Segment
from pcp.runtime.transport import mover
from pcp.runtime.transport.frame import Header, parse_json

TURN_BYTES = 4 << 20
"""Bytes that are reduced in one turn of the loop, which then serves others."""
_HEAD, _OFFERS = struct.Struct(">?H"), struct.Struct(">QQII16s QQII16s Q")
_TOKENS = itertools.count(1)
_FENCE = threading.Lock()
"""A memory fence: reads before it is taken come before reads after it."""


class ZeroCopyReduce(SharedMemoryReduce):
    """A reduction into a new array in shared memory; see the module.

    `visible` is the place of the operand that peers read; `target`, at the place
    `room`, becomes the result.
    """

    way = b"s"

    def __init__(
        self,
        *args: Any,
        visible: Place | None,
        target: NDArray,
        room: Place | None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._visible = visible
        self._target = target
        self._room = room
        self._offered: Place | None = None
        """`room`, once it was offered to the peers."""
        self._theirs: dict[int, NDArray] = {}
        self._results: dict[int, NDArray[np.uint8]] = {}
        self._tokens: dict[int, tuple[Segment, int]] = {}
        self._reduced = 0
        self._summed: set[int] = set()

    # The arrays.

    def _offer(self) -> tuple[bool, bytes]:
        """The offer; without `visible` it only lets segments be mapped for later."""
        array, result = self._visible or self._room, self._room
        if array is None or result is None:
            return False, _Word(False, ARRAYS.live).packed()
        self._offered = result
        token = result.segment.token = next(_TOKENS)
        ready = self._visible is not None
        word = _Word(ready, ARRAYS.live, array.offer, result.offer, token)
        return ready, word.packed()

    def _other_way(self, peer: int, way: bytes, said: memoryview) -> None:
        if way == IN_PLACE:
            self._shared_scratch.heed(peer, parse_json(said))

    def _map(self, peer: int, said: memoryview) -> bool:
        reach, nbytes = self._shared_scratch.arrays, self._plain.nbytes
        word = _Word.parsed(said)
        reach.keep(peer, set(word.live))
        if word.array is None or word.result is None:
            return word.ready
        theirs = reach.map(peer, word.array, nbytes)
        room = reach.map(peer, word.result, nbytes, writable=True)
        if theirs is None or room is None:
            self._unreachable = True
            return word.ready
        self._theirs[peer] = _bytes(theirs, word.array, nbytes).view(self._dtype)
        self._results[peer] = _bytes(room, word.result, nbytes)
        self._tokens[peer] = room, word.token
        return word.ready

    def _start(self) -> None:
        """Do nothing: the operands of the peers are needed."""

    # Reducing the own chunk.

    def _proceed(self) -> None:
        self._reduce_on()

    def _reduce_on(self) -> None:
        """Reduce as much as a turn of the loop may take."""
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
        elif self._was_meant():
            for peer in self.peers:
                self.send_data(peer, REDUCED, 0, WORD)

    def _was_meant(self) -> bool:
        """Whether all tokens are in place after reading; else give the operation up."""
        with _FENCE:
            now = {peer: segment.token for peer, (segment, _) in self._tokens.items()}
        for peer, (_, token) in self._tokens.items():
            if now[peer] != token:
                message = f"rank {peer} has ended it without rank {self._rank}"
                self.give_up(CollectiveAborted(f"{self.name}: {message}"))
                return False
        return True

    def _reduce_range(
        self, owner: int, first: int, last: int, theirs: Sequence[NDArray[np.uint8]]
    ) -> None:
        """Reduce elements of the chunk of `owner` into the own result and `theirs`."""
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
        if self._offered is not None and not self.agreement.settled:
            self._offered.segment.token = 0
            if not self.committed and self._through != "ring":
                ARRAYS.spoil(self._offered)
        self._theirs.clear()
        self._results.clear()
        self._tokens.clear()

    def _moved(self) -> tuple[dict[int, int], dict[int, int]]:
        written = self._reduced * self._dtype.itemsize
        read = dict.fromkeys(self.peers, written)
        return dict.fromkeys(self.peers, written), read


class SmallZeroCopyReduce(ZeroCopyReduce):
    """The zero-copy reduce of arrays so small that a frame costs more than a sum."""

    def _proceed(self) -> None:
        for owner, (start, stop) in enumerate(self._chunks):
            self._reduce_range(owner, start, stop, ())
        if self._was_meant():
            self._reduced = self._plain.size

    def _right(self, peer: int, header: Header) -> bool:
        return False

    def complete(self) -> bool:
        if self._through != "memory":
            return super().complete()
        return self._reduced == self._plain.size


class _Word(NamedTuple):
    """A member's offer: whether it can go through memory, the numbers of its live
    segments, and the places of its operand and its result, with the token."""

    ready: bool
    live: Sequence[int]
    array: Offer | None = None
    result: Offer | None = None
    token: int = 0

    def packed(self) -> bytes:
        """The bytes of the offer."""
        head = _HEAD.pack(self.ready, len(self.live))
        head += struct.pack(f">{len(self.live)}Q", *self.live)
        if self.array is None or self.result is None:
            return head
        return head + _OFFERS.pack(*self.array, *self.result, self.token)

    @classmethod
    def parsed(cls, said: memoryview) -> "_Word":
        """The offer in these bytes of a peer; ProtocolError if it is none."""
        try:
            ready, count = _HEAD.unpack_from(said)
            live = struct.unpack_from(f">{count}Q", said, _HEAD.size)
            offers = said[_HEAD.size + 8 * count :]
            if not offers:
                return cls(ready, live)
            words = _OFFERS.unpack(offers)
        except struct.error as error:
            raise ProtocolError(
                f"an OPEN frame with nonsense about memory: {error}"
            ) from None
        fields = len(Offer._fields)
        array, result = Offer(*words[:fields]), Offer(*words[fields:-1])
        return cls(ready, live, array, result, words[-1])


def _bytes(segment: Segment, offer: Offer, nbytes: int) -> NDArray[np.uint8]:
    return segment.octets[offer.at : offer.at + nbytes]


def visible(
    array: NDArray,
    chunks: Sequence[tuple[int, int]],
    rank: int,
    result: tuple[NDArray, Place | None],
) -> Place | None:
    """The place of `array`, or of a copy of it, in memory that peers can map.

    The copy is where the result will be, without the chunk that only this member reads.
    A small array, of which every member reads all, has a copy of its own.
    """
    target, room = result
    if (place := ARRAYS.place(array)) is not None or room is None:
        return place
    flat = array.reshape(-1)
    if is_small(array.nbytes, len(chunks)):
        copy, place = ARRAYS.placed(array.size, array.dtype)
        np.copyto(copy, flat)
        return place
    copy, (start, stop) = target.reshape(-1), chunks[rank]
    mover.copy(copy[:start], flat[:start])
    mover.copy(copy[stop:], flat[stop:])
    return room


def zero_copy_reduce_for(nbytes: int, members: int) -> type[ZeroCopyReduce]:
    """The class of the zero-copy reduce for arrays of this size."""
    return SmallZeroCopyReduce if is_small(nbytes, members) else ZeroCopyReduce
