"""A reduction into a new array, of members that all are on one machine: no copies.

What every member reduces lies in memory that the others have mapped (`shared_arrays`),
and so does the new array that it gets. Every member reduces its own chunk straight from
the others' arrays, and writes the sum into the results of all:

    result at rank 1       | chunk 0        | chunk 1          | chunk 2        |
                           | written by 0   | by itself        | by 2           |

That is half as many ways through memory as `in_place_reduce` needs, which has to leave
the caller's array alone until all have agreed. Here nobody has the result before. Who
has heard from all that their chunks are written votes; a result that might still be
written to, because the operation was given up, is nobody's and is never used again.

What is small every member reduces itself (`StraightEager`), before it votes.

What a member reads is another one's own array, which that one may change once the
operation has ended for it. As a rule that is when all have voted, and so have read. But
it may end without a member: one that was stopped and is taken for dead, or one that
is late for what another has given up. So every result carries a token of the operation,
which is taken away when it ends like that, before anybody can know of the end. Who
finds all tokens in place after reading has read what was meant, and votes only then.

An array in ordinary memory is copied first, in the thread that calls: without the own
chunk, which nobody else reads.
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
from pcp.runtime.collectives.shared_memory_reduce import REDUCED, WORD, ThroughMemory
from pcp.runtime.memory.shared_arrays import ARRAYS, Offer, PeerMappings, Place
from pcp.runtime.memory.shared_segment import Segment
from pcp.runtime.transport.frame import Header, parse_json

TURN_BYTES = 4 << 20
"""Reduced in one turn of the loop, which serves others in between."""
_HEAD, _OFFERS = struct.Struct(">?H"), struct.Struct(">QQII16s QQII16s Q")
_TOKENS = itertools.count(1)
_FENCE = threading.Lock()
"""What was read before it is taken was read before what is read after it."""


class ZeroCopyReduce(ThroughMemory):
    """`visible` is what the others read of the source; `target`, which lies in `room`,
    becomes the result."""

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
        """`room`, once the others may know of it."""
        self._theirs: dict[int, NDArray] = {}
        self._results: dict[int, NDArray[np.uint8]] = {}
        self._tokens: dict[int, tuple[Segment, int]] = {}
        self._reduced = 0
        self._summed: set[int] = set()

    # The arrays.

    def _offer(self) -> tuple[bool, bytes]:
        """Without `visible` the operation is one that only maps what will be used."""
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
        elif self._was_meant():
            for peer in self.peers:
                self.send_data(peer, REDUCED, 0, WORD)

    def _was_meant(self) -> bool:
        """Whether nobody has ended it while it was read; else it is given up."""
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
        if self._offered is not None and self._done != set(self.peers):
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
    """The same for arrays so small that a word costs more than a sum."""

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
    """What a member says in its opening: whether it is for memory, which numbers it may
    offer again, and where its array and its result are, under which token."""

    ready: bool
    live: Sequence[int]
    array: Offer | None = None
    result: Offer | None = None
    token: int = 0

    def packed(self) -> bytes:
        """As it travels."""
        head = _HEAD.pack(self.ready, len(self.live))
        head += struct.pack(f">{len(self.live)}Q", *self.live)
        if self.array is None or self.result is None:
            return head
        return head + _OFFERS.pack(*self.array, *self.result, self.token)

    @classmethod
    def parsed(cls, said: memoryview) -> "_Word":
        """What a peer said; ProtocolError for nonsense."""
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
    array: NDArray, own: tuple[int, int], reach: PeerMappings, peers: Sequence[int]
) -> Place | None:
    """Where `array` lies, or what others read of a copy, in memory that they can map.

    `own` is the range of elements that only this member reads. None where it would be
    of no use, since there are `peers` of whom nothing was reached before.
    """
    if not reach.reached(peers):
        return None
    if (place := ARRAYS.place(array)) is not None:
        return place
    flat = array.reshape(-1)
    copy, place = ARRAYS.placed(array.size, array.dtype)
    if place is None:
        return None
    np.copyto(copy[: own[0]], flat[: own[0]])
    np.copyto(copy[own[1] :], flat[own[1] :])
    return place


def zero_copy_reduce_for(nbytes: int, members: int) -> type[ZeroCopyReduce]:
    """How a reduction of this size goes."""
    return SmallZeroCopyReduce if is_small(nbytes, members) else ZeroCopyReduce
