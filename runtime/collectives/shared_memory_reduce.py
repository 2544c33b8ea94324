"""A large reduction that goes through memory if all members can, or along the ring.

Which of the two follows from what all members say in their openings, behind the
descriptor, which all of them read: if one of them has no memory to offer, or has never
reached that of everybody, all go along the ring. So the first operation of a group
does, and maps what the others offer on the way. A member that cannot map it says
nothing about memory from then on, and after that nobody does.

What is not checksummed here never leaves the memory of this machine, which the
kernel and the memory's own parity look after as after any other array.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import CollectiveAborted, ProtocolError
from pcp.runtime.collectives.direct import Ring, pieces
from pcp.runtime.collectives.shared_scratch import SharedScratch
from pcp.runtime.transport.frame import Header

BLOCK_BYTES = 512 << 10
"""Reduced at a time: the sum stays in the cache until all have been added."""
WORD = memoryview(b"\1")
"""The payload of a frame that only says something."""
COPIED = 1 << 31
"""The step of a frame that says up to where a chunk was copied."""
REDUCED = COPIED + 1
"""The step of a frame that says that the sender's own chunk is reduced."""
DEATH_SECONDS = 0.5
"""The kernel has closed a dead member's connections by then."""


class ThroughMemory(Ring):
    """Decides; subclasses reduce."""

    eager_data = False

    def __init__(self, *args: Any, shared_scratch: SharedScratch, **more: Any) -> None:
        super().__init__(*args, **more)
        self._shared_scratch = shared_scratch
        self._plain = self._source
        self._through: str | None = None
        self._ready = False
        """Whether this member is for memory."""
        self._word = b""
        """What it says of its own, if anything."""
        self._unreachable = False
        """Whether memory that was offered could not be mapped."""

    # What subclasses say.

    way: bytes
    """The letter before what is said. Members that want to go other ways meet on the
    ring: who wants a new array (`zero_copy_reduce`) and who does not
    (`in_place_reduce`)."""

    def _offer(self) -> tuple[bool, bytes]:
        """Whether this member is for memory, and what to say of its own."""
        raise NotImplementedError

    def _start(self) -> None:
        """This member is for it: what can be done before the others have opened."""

    def _map(self, peer: int, said: memoryview) -> bool:
        """Map what a peer offers, as far as it can be; whether that one is for memory.

        ProtocolError for nonsense.
        """
        raise NotImplementedError

    def _other_way(self, peer: int, way: bytes, said: memoryview) -> None:
        """What a peer says that goes another way may concern this member, too."""

    def _unmapped(self) -> set[int]:
        """The peers whose memory was not mapped."""
        raise NotImplementedError

    def _proceed(self) -> None:
        """All members go through memory."""
        raise NotImplementedError

    # Deciding.

    @property
    def _own(self) -> tuple[int, int]:
        return self._chunks[self._rank]

    def prepare(self) -> None:
        if not self._shared_scratch.possible:
            self._through = "ring"
            return
        self._ready, said = self._offer()
        self._word = self.way + said

    def eager(self, peer: int) -> bytes:
        return self._word

    def begin(self) -> None:
        if self._through == "ring":
            super().begin()
        elif not self._ready:
            self._go_along_the_ring()
        else:
            self._start()

    def accept(self, peer: int, payload: memoryview) -> None:
        if not self._word:
            return
        way, said = bytes(payload[:1]), payload[1:]
        if not way:
            self._shared_scratch.refused()
            self._go_along_the_ring()
        elif way != self.way:
            self._other_way(peer, way, said)
            self._go_along_the_ring()
        elif not self._map(peer, said):
            self._go_along_the_ring()
        elif len(self.opened) == len(self.peers) and self._through is None:
            self._go_through_memory()

    def _go_along_the_ring(self) -> None:
        if self._through is None:
            self._through = "ring"
            super().begin()

    def _go_through_memory(self) -> None:
        if self._unmapped():
            # Most likely somebody died after it had opened: that news is on its way.
            self.group.later(DEATH_SECONDS, self._unreached)
            return
        self._through = "memory"
        self._proceed()

    def _unreached(self) -> None:
        if self.over:
            return
        self._shared_scratch.refused()
        self.give_up(
            CollectiveAborted(
                f"{self.name}: rank {self._rank} can no longer map the memory of rank "
                f"{min(self._unmapped())}; are descriptors or memory used up? "
                f"Operations go over the connections from now on"
            )
        )

    # Reducing.

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

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        step = max(1, BLOCK_BYTES // self._reduction.accumulator.itemsize)
        return pieces(start, stop, step)

    # Words, and the ring.

    def _right(self, peer: int, header: Header) -> bool:
        """Whether a peer may say this now."""
        raise NotImplementedError

    def place(self, peer: int, header: Header) -> memoryview:
        if header.step < COPIED:
            # Who sends data has heard somebody say that memory will not do.
            self._go_along_the_ring()
        if self._through == "ring":
            return super().place(peer, header)
        if header.length != len(WORD) or not self._right(peer, header):
            raise ProtocolError(f"{self.name}: rank {peer} says what cannot be")
        return memoryview(bytearray(len(WORD)))

    def complete(self) -> bool:
        return self._through == "ring" and super().complete()

    def release(self) -> None:
        super().release()
        if self._through == "memory":
            self._count()
        if self.committed and self._unreachable:
            self._shared_scratch.refused()

    def _count(self) -> None:
        """What went through memory, for the counters of operation and connections."""
        sent, received = self._moved()
        self.timing.sent += sum(sent.values())
        self.timing.received += sum(received.values())
        self._shared_scratch.moved(sent, received)

    def _moved(self) -> tuple[dict[int, int], dict[int, int]]:
        """Bytes to and from each peer."""
        raise NotImplementedError
