"""The in-place reduce: a large reduction in shared memory of members on one machine.

Every member copies the chunks that other members reduce into a segment of its own
(`shared_scratch`), reduces its own chunk straight from their segments, and leaves the
sum in its own segment, where the others read it when all have voted:

    segment of rank 1      | chunk 0        | chunk 1          | chunk 2        |
                           | 1's, for 0     | the sum of all   | 1's, for 2     |

So every element is copied once on each of its ways, in few large pieces. A member sends
how far it has copied a chunk, and when it has reduced its own; it votes when all chunks
are reduced, and the segments that its commit then reads outlive the members that wrote
them. The chunks and their order are those of the ring, and so are the bits.

A small array is reduced by every member itself (`SmallInPlaceReduce`), in the same
order.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.runtime.collectives.shared_memory_reduce import (
    COPIED,
    REDUCED,
    WORD,
    SharedMemoryReduce,
)
from pcp.runtime.memory.shared_segment import Segment
from pcp.runtime.transport.frame import Header, json_payload, parse_json

IN_PLACE = b"p"
"""The letter of the in-place reduce in an OPEN frame (`SharedMemoryReduce.way`)."""
PIECE_BYTES = 2 << 20
"""Bytes that are copied at a time, and then announced to the chunk's owner."""
AT_ONCE_BYTES = 1 << 20
"""Arrays of up to these bytes are copied before the operation is opened."""
SMALL_BYTES = 2 << 20
"""Up to these bytes, over all members but one, every member reduces all chunks."""


class InPlaceReduce(SharedMemoryReduce):
    """A large reduction in shared memory; see the module.

    `target` becomes the result and is the operation's value; without it `commit` gets
    a flat array of which the own chunk is valid.
    """

    way = IN_PLACE

    def __init__(self, *args: Any, target: NDArray | None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._target = target
        self._mine: Segment | None = None
        self._theirs: dict[int, Segment] = {}
        self._copied = dict.fromkeys(self.peers, 0)
        self._told = dict.fromkeys(self.peers, 0)
        self._marked = dict.fromkeys(self.peers, 0)
        self._reduced = 0
        self._summed: set[int] = set()
        self._to_copy: Iterator[tuple[int, int, int]] = iter(())

    # The segments.

    def prepare(self) -> None:
        super().prepare()
        if self._ready:
            self._copy_before()

    def _offer(self) -> tuple[bool, bytes]:
        self._mine, said = self._shared_scratch.lease(
            (self.tag, self.seq), self._plain.nbytes
        )
        return said["maps"], json_payload(said)

    def _map(self, peer: int, said: memoryview) -> bool:
        facts = parse_json(said)
        segment = self._shared_scratch.meet(peer, facts, self._plain.nbytes)
        if segment is not None:
            self._theirs[peer] = segment
        elif facts.get("id") is not None:
            self._unreachable = True
        return facts.get("maps") is True

    def _start(self) -> None:
        if self._plain.nbytes > AT_ONCE_BYTES:
            self._copy_on()

    def _proceed(self) -> None:
        if self._plain.nbytes <= AT_ONCE_BYTES:
            for peer in self.peers:
                self._marked[peer] = self._own[1] - self._own[0]
        self._tell()
        self._reduce()

    # Copying the chunks that other members reduce.

    def _copy_before(self) -> None:
        """Copy a small array before the operation is opened."""
        self._to_copy = self._copying()
        while self._plain.nbytes <= AT_ONCE_BYTES and self._copy_next():
            pass

    def _copying(self) -> Iterator[tuple[int, int, int]]:
        """(rank, first, last): the pieces of all chunks but the own, by turns."""
        step = max(1, PIECE_BYTES // self._plain.itemsize)
        longest = max(stop - start for start, stop in self._chunks)
        for at in range(0, longest, step):
            for hop in range(1, self._size):
                peer = (self._rank + hop) % self._size
                start, stop = self._chunks[peer]
                if start + at < stop:
                    yield peer, start + at, min(start + at + step, stop)

    def _copy_next(self) -> bool:
        piece = next(self._to_copy, None)
        if piece is None:
            return False
        peer, a, b = piece
        assert self._mine is not None, "there is a segment when there is copying"
        flat = self._mine.flat(self._plain.size, self._dtype)
        np.copyto(flat[a:b], self._plain[a:b])
        self._copied[peer] = b - self._chunks[peer][0]
        return True

    def _copy_on(self) -> None:
        """Copy one piece a turn of the loop, which serves others in between."""
        if self.over or self._through == "ring" or not self._copy_next():
            return
        self._tell()
        self.group.later(0.0, self._copy_on)

    def _tell(self) -> None:
        """Send the owners of the other chunks how far these are copied."""
        if self._through != "memory":
            return
        for peer, copied in self._copied.items():
            if copied > self._told[peer] and self._plain.nbytes > AT_ONCE_BYTES:
                self._told[peer] = copied
                self.send_data(peer, COPIED, copied, WORD)

    # Reducing the own chunk.

    def _right(self, peer: int, header: Header) -> bool:
        start, stop = self._own
        if header.step == COPIED:
            return self._marked[peer] < header.offset <= stop - start
        return header.step == REDUCED and peer not in self._summed

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        if self._through == "ring":
            super().arrived(peer, header, payload)
        elif header.step == REDUCED:
            self._summed.add(peer)
        else:
            self._marked[peer] = header.offset
            if self._through == "memory":
                self._reduce()

    def _reduce(self) -> None:
        """Reduce the part of the own chunk that all peers have copied by now."""
        start, stop = self._own
        ready = min(self._marked.values())
        parts = self._parts()
        assert self._mine is not None, "reducing needs a segment"
        out = self._mine.flat(self._plain.size, self._dtype)
        for a, b in self._blocks(start + self._reduced, start + ready):
            self._reduce_block([part[a:b] for part in parts], out[a:b])
        self._reduced = ready
        if self._target is not None and start + ready == stop:
            for peer in self.peers:
                self.send_data(peer, REDUCED, 0, WORD)

    def _parts(self) -> list[NDArray]:
        """All members' arrays, in the order in which the own chunk passes the ring."""
        size, dtype = self._plain.size, self._dtype
        return [
            self._plain if rank == self._rank else self._theirs[rank].flat(size, dtype)
            for rank in self._behind(self._rank)
        ]

    # The end.

    def complete(self) -> bool:
        if self._through != "memory":
            return super().complete()
        start, stop = self._own
        others = (self._chunks[peer] for peer in self.peers)
        copied = sum(self._copied.values()) == sum(b - a for a, b in others)
        summed = self._target is None or self._summed == set(self.peers)
        return copied and summed and self._reduced == stop - start

    def commit(self) -> Any:
        if self._through != "memory":
            return super().commit()
        assert self._mine is not None, "what was reduced is there"
        size, dtype = self._plain.size, self._dtype
        mine = self._mine.flat(size, dtype)
        if self._target is None:
            return self._write(mine)
        whole = {peer: s.flat(size, dtype) for peer, s in self._theirs.items()}
        whole[self._rank] = mine
        flat = self._target.reshape(-1)
        for rank, (a, b) in enumerate(self._chunks):
            np.copyto(flat[a:b].view(np.uint8), whole[rank][a:b].view(np.uint8))
        return self._target

    def release(self) -> None:
        super().release()
        if not self._word:
            return
        key = (self.tag, self.seq)
        if self.committed:
            self._shared_scratch.back(key, used=self._through == "memory")
        else:
            self._shared_scratch.drop(key)
        self._mine = None
        self._theirs.clear()

    def _moved(self) -> tuple[dict[int, int], dict[int, int]]:
        item, gather = self._plain.itemsize, self._target is not None
        sizes = {rank: b - a for rank, (a, b) in enumerate(self._chunks)}
        out = sizes[self._rank] if gather else 0
        sent = {peer: item * (self._copied[peer] + out) for peer in self.peers}
        received = {
            peer: item * (self._reduced + (sizes[peer] if gather else 0))
            for peer in self.peers
        }
        return sent, received


class SmallInPlaceReduce(InPlaceReduce):
    """The in-place reduce of arrays so small that a frame costs more than a sum.

    The array is copied before the operation is opened. A member with the OPEN frames of
    all has all operands, and reduces all chunks itself when all members have voted.
    """

    def _copy_before(self) -> None:
        self._copy_of_mine()[:] = self._plain

    def _copy_of_mine(self) -> NDArray:
        assert self._mine is not None, "a segment was lent"
        return self._mine.flat(self._plain.size, self._dtype)

    def _proceed(self) -> None:
        """Do nothing: there is no work before the vote."""

    def _right(self, peer: int, header: Header) -> bool:
        return False

    def complete(self) -> bool:
        return self._through == "memory" or super().complete()

    def commit(self) -> Any:
        if self._through != "memory":
            return super().commit()
        size, dtype = self._plain.size, self._dtype
        parts = {peer: s.flat(size, dtype) for peer, s in self._theirs.items()}
        assert self._target is not None, "this is an all_reduce"
        out = self._target.reshape(-1)
        in_place = np.may_share_memory(self._plain, out)
        for rank, (start, stop) in enumerate(self._chunks):
            order = self._behind(rank)
            # The operand is read where it is, unless it would have changed by then.
            late = in_place and self._rank not in order[:2]
            parts[self._rank] = self._copy_of_mine() if late else self._plain
            turns = [parts[r] for r in order]
            for a, b in self._blocks(start, stop):
                self._reduce_block([part[a:b] for part in turns], out[a:b])
        return self._target

    def _moved(self) -> tuple[dict[int, int], dict[int, int]]:
        everything = dict.fromkeys(self.peers, self._plain.nbytes)
        return everything, everything


def is_small(nbytes: int, members: int) -> bool:
    """Whether every member reduces an array of this size itself."""
    return nbytes <= AT_ONCE_BYTES and nbytes * (members - 1) <= SMALL_BYTES


def through_memory(nbytes: int, members: int) -> type[InPlaceReduce]:
    """The class of the in-place reduce for arrays of this size."""
    return SmallInPlaceReduce if is_small(nbytes, members) else InPlaceReduce
