"""A large reduction of members that all are on one machine: through their memory.

Every member copies what the others reduce into a segment of its own (`commons`),
reduces its own chunk straight from their segments, and leaves the sum in its own,
where the others read it when all have voted:

    segment of rank 1      | chunk 0        | chunk 1          | chunk 2        |
                           | 1's, for 0     | the sum of all   | 1's, for 2     |

So every element is copied once on each of its ways, in few large pieces. Members say
how far they have copied a chunk, and when they have reduced their own; who has heard
that of all votes, and what it then reads in the commit outlives the member that wrote
it. The chunks and their order are those of a `Ring`, and so are the bits.

What is small every member reduces itself (`SharedEager`), in the same order.

Whether it goes this way follows from what all members say in their openings, which
all of them read: if one of them cannot, all go along the ring.

What is not checksummed here never leaves the memory of this machine, which the
kernel and the memory's own parity look after as after any other array.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import CollectiveAborted, ProtocolError
from pcp.runtime.collectives import Ring, pieces
from pcp.runtime.commons import Commons
from pcp.runtime.framing import Header
from pcp.runtime.segments import Segment

PIECE_BYTES = 2 << 20
"""Copied, and then told to who reduces it, at a time."""
BLOCK_BYTES = 512 << 10
"""Reduced at a time: the sum stays in the cache until all have been added."""
AT_ONCE_BYTES = 1 << 20
"""Arrays up to this are copied before the operation is opened: no word of it then."""
_COPIED = 1 << 31
"""The step of a frame that says up to where a chunk was copied."""
_REDUCED = _COPIED + 1
"""The step of a frame that says that the sender's own chunk is reduced."""
_WORD = memoryview(b"\1")

DEATH_SECONDS = 0.5
"""The kernel has closed a dead member's connections by then."""
SMALL_BYTES = 2 << 20
"""Up to this much, over all members but one, every member reduces everything itself."""


class SharedReduce(Ring):
    """See the module. `target` becomes the result and is the operation's value; without
    it `commit` gets a flat array of which the own chunk is valid."""

    def __init__(
        self, *args: Any, commons: Commons, target: NDArray | None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.free = frozenset({"memory"})
        self._commons = commons
        self._target = target
        self._plain = self._source
        self._through: str | None = None
        self._mine: Segment | None = None
        self._theirs: dict[int, Segment] = {}
        self._copied = dict.fromkeys(self.peers, 0)
        self._told = dict.fromkeys(self.peers, 0)
        self._marked = dict.fromkeys(self.peers, 0)
        self._reduced = 0
        self._summed: set[int] = set()
        self._ready = False
        self._unreachable = False
        """Whether memory that was offered could not be mapped."""
        self._to_copy: Iterator[tuple[int, int, int]] = iter(())

    @property
    def _own(self) -> tuple[int, int]:
        return self._chunks[self._rank]

    # Deciding.

    def prepare(self) -> None:
        if not self._commons.possible:
            self._through = "ring"
        elif self._borrowed():
            self._copy_before()

    def _borrowed(self) -> bool:
        """Whether this member is for it; it says so to the others."""
        self._mine, said = self._commons.lend((self.tag, self.seq), self._plain.nbytes)
        self.descriptor["memory"] = said
        self._ready = said["maps"]
        return self._ready

    def begin(self) -> None:
        if self._through == "ring":
            super().begin()
        elif not self._ready:
            self._go_along_the_ring()
        elif self._plain.nbytes > AT_ONCE_BYTES:
            self._copy_on()

    def accept(self, peer: int, payload: memoryview) -> None:
        if "memory" not in self.descriptor:
            return
        said = self.opened[peer].get("memory")
        if said is None:
            self._commons.refused()
            self._go_along_the_ring()
            return
        segment = self._commons.meet(peer, said, self._plain.nbytes)
        if segment is not None:
            self._theirs[peer] = segment
        elif said.get("id") is not None:
            self._unreachable = True
        if said.get("maps") is not True:
            self._go_along_the_ring()
        elif len(self.opened) == len(self.peers) and self._through is None:
            self._go_through_memory()

    def _go_along_the_ring(self) -> None:
        if self._through is None:
            self._through = "ring"
            super().begin()

    def _go_through_memory(self) -> None:
        if set(self.peers) - set(self._theirs):
            # Most likely somebody died after it had opened: that news is on its way.
            self.group.later(DEATH_SECONDS, self._unreached)
            return
        self._through = "memory"
        self._proceed()

    def _unreached(self) -> None:
        if self.over:
            return
        self._commons.refused()
        who = min(set(self.peers) - set(self._theirs))
        self.give_up(
            CollectiveAborted(
                f"{self.name}: rank {self._rank} can no longer map the memory of rank "
                f"{who}; are descriptors or memory used up? Operations go over the "
                f"connections from now on"
            )
        )

    def _proceed(self) -> None:
        """All members go through memory."""
        if self._plain.nbytes <= AT_ONCE_BYTES:
            for peer in self.peers:
                self._marked[peer] = self._own[1] - self._own[0]
        self._tell()
        self._reduce()

    # Copying what others reduce.

    def _copy_before(self) -> None:
        """Copy what is copied before the operation is opened."""
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
        """One piece a turn of the loop, which serves others in between."""
        if self.over or self._through == "ring" or not self._copy_next():
            return
        self._tell()
        self.group.later(0.0, self._copy_on)

    def _tell(self) -> None:
        """Say how far the chunks of the others are copied."""
        if self._through != "memory":
            return
        for peer, copied in self._copied.items():
            if copied > self._told[peer] and self._plain.nbytes > AT_ONCE_BYTES:
                self._told[peer] = copied
                self.send_data(peer, _COPIED, copied, _WORD)

    # Reducing the own chunk.

    def place(self, peer: int, header: Header) -> memoryview:
        if header.step < _COPIED:
            # Who sends data has heard somebody say that memory will not do.
            self._go_along_the_ring()
        if self._through == "ring":
            return super().place(peer, header)
        start, stop = self._own
        if header.step == _COPIED:
            right = self._marked[peer] < header.offset <= stop - start
        else:
            right = header.step == _REDUCED and peer not in self._summed
        if header.length != 1 or not right:
            raise ProtocolError(f"{self.name}: rank {peer} says what cannot be")
        return memoryview(bytearray(1))

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        if self._through == "ring":
            super().arrived(peer, header, payload)
        elif header.step == _REDUCED:
            self._summed.add(peer)
        else:
            self._marked[peer] = header.offset
            if self._through == "memory":
                self._reduce()

    def _reduce(self) -> None:
        """Reduce what all the others have copied by now."""
        start, stop = self._own
        ready = min(self._marked.values())
        step = max(1, BLOCK_BYTES // self._reduction.accumulator.itemsize)
        parts = self._parts()
        assert self._mine is not None, "reducing needs a segment"
        out = self._mine.flat(self._plain.size, self._dtype)
        for a, b in pieces(start + self._reduced, start + ready, step):
            self._reduce_block([part[a:b] for part in parts], out[a:b])
        self._reduced = ready
        if self._target is not None and start + ready == stop:
            for peer in self.peers:
                self.send_data(peer, _REDUCED, 0, _WORD)

    def _parts(self) -> list[NDArray]:
        """Everybody's array, in the order in which the own chunk passes the ring."""
        size, dtype = self._plain.size, self._dtype
        return [
            self._plain if rank == self._rank else self._theirs[rank].flat(size, dtype)
            for rank in self._behind(self._rank)
        ]

    def _behind(self, rank: int) -> list[int]:
        """The ring from behind a rank to itself: who is added up in its chunk when."""
        after = self._order.index(rank) + 1
        return [*self._order[after:], *self._order[:after]]

    def _reduce_block(self, parts: Sequence[NDArray], out: NDArray) -> None:
        reduction = self._reduction
        wide = reduction.accumulator != reduction.dtype
        total = np.empty(out.size, reduction.accumulator) if wide else out
        left = reduction.widen(parts[0])
        for part in parts[1:]:
            reduction.combine(left, reduction.widen(part), total)
            left = total
        reduction.finish(total, self._size, out)

    # The end.

    def complete(self) -> bool:
        if self._through != "memory":
            return self._through == "ring" and super().complete()
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
        if "memory" not in self.descriptor:
            return
        key, through = (self.tag, self.seq), self._through == "memory"
        if through:
            self._count()
        if self.committed:
            if self._unreachable:
                self._commons.refused()
            self._commons.back(key, used=through)
        else:
            self._commons.drop(key)
        self._mine = None
        self._theirs.clear()

    def _count(self) -> None:
        """What went through memory, for the counters of operation and connections."""
        sent, received = self._moved()
        self.timing.sent += sum(sent.values())
        self.timing.received += sum(received.values())
        self._commons.moved(sent, received)

    def _moved(self) -> tuple[dict[int, int], dict[int, int]]:
        """Bytes to and from each peer."""
        item, gather = self._plain.itemsize, self._target is not None
        sizes = {rank: b - a for rank, (a, b) in enumerate(self._chunks)}
        out = sizes[self._rank] if gather else 0
        sent = {peer: item * (self._copied[peer] + out) for peer in self.peers}
        received = {
            peer: item * (self._reduced + (sizes[peer] if gather else 0))
            for peer in self.peers
        }
        return sent, received


class SharedEager(SharedReduce):
    """The same for arrays so small that a word costs more than a sum.

    Everything is copied before the operation is opened. Who has all openings has all
    there is to reduce, and every member reduces all of it itself when all have voted.
    """

    def _copy_before(self) -> None:
        self._copy_of_mine()[:] = self._plain

    def _copy_of_mine(self) -> NDArray:
        assert self._mine is not None, "a segment was lent"
        return self._mine.flat(self._plain.size, self._dtype)

    def _proceed(self) -> None:
        """Nothing is left to be done before the vote."""

    def place(self, peer: int, header: Header) -> memoryview:
        if header.step >= _COPIED:
            raise ProtocolError(f"{self.name}: rank {peer} says what nobody asks for")
        return super().place(peer, header)

    def complete(self) -> bool:
        return self._through == "memory" or super().complete()

    def commit(self) -> Any:
        if self._through != "memory":
            return super().commit()
        size, dtype = self._plain.size, self._dtype
        parts = {peer: s.flat(size, dtype) for peer, s in self._theirs.items()}
        # Not the target: that changes while it is still needed.
        parts[self._rank] = self._copy_of_mine()
        assert self._target is not None, "this is an all_reduce"
        out = self._target.reshape(-1)
        step = max(1, BLOCK_BYTES // self._reduction.accumulator.itemsize)
        for rank, (start, stop) in enumerate(self._chunks):
            turns = [parts[r] for r in self._behind(rank)]
            for a, b in pieces(start, stop, step):
                self._reduce_block([part[a:b] for part in turns], out[a:b])
        return self._target

    def _moved(self) -> tuple[dict[int, int], dict[int, int]]:
        everything = dict.fromkeys(self.peers, self._plain.nbytes)
        return everything, everything


def through_memory(nbytes: int, members: int) -> type[SharedReduce]:
    """How an all_reduce of this size goes."""
    small = nbytes <= AT_ONCE_BYTES and nbytes * (members - 1) <= SMALL_BYTES
    return SharedEager if small else SharedReduce
