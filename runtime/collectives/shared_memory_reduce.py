"""A large reduction that goes through memory if all members can, or along the ring.

The choice follows from the offers in the OPEN frames, behind the descriptor, which all
members read: if a member has no memory to offer, or has not mapped a segment of every
other member before, all go along the ring. So does the first operation of a group, and
maps the offered segments on the way. A member that cannot map one offers no memory from
then on, and after that no operation goes through memory.

Data without a checksum never leaves the memory of this machine, which the kernel and
the memory's own parity protect like any other array.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import CollectiveAborted, ProtocolError
from pcp.runtime.collectives.direct import pieces
from pcp.runtime.collectives.scheduled_reduce import ScheduledReduce
from pcp.runtime.collectives.shared_scratch import SharedScratch
from pcp.runtime.transport.frame import Header
from pcp.runtime.transport.incoming import Flow

BLOCK_BYTES = 512 << 10
"""Bytes that are reduced at a time: the sum stays in the cache meanwhile."""
WORD = memoryview(b"\1")
"""The payload of a frame without data."""
COPIED = 1 << 31
"""The step of a frame whose offset is how far a chunk is copied."""
REDUCED = COPIED + 1
"""The step of a frame that announces that the sender's own chunk is reduced."""
DEATH_SECONDS = 0.5
"""Within this time the kernel closes a dead member's connections."""


class SharedMemoryReduce(ScheduledReduce):
    """The choice between memory and the ring; subclasses reduce in memory."""

    eager_data = False

    def __init__(
        self,
        *args: Any,
        shared_scratch: SharedScratch,
        order: Sequence[int],
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._shared_scratch, self._order = shared_scratch, order
        self._plain = self._source
        self._through: str | None = None
        self._ready = False
        """Whether this member can go through memory."""
        self._word = b""
        """This member's offer; empty without memory."""
        self._theirs: dict[int, Any] = {}
        """The mapped memory of each peer."""
        self._unreachable = False
        """Whether an offered segment could not be mapped."""

    @property
    def partners(self) -> None:
        """Every member maps the memory of all others."""

    # For subclasses to define.

    way: bytes
    """The letter before an offer. Members of different ways go along the ring: those
    with a new array (`zero_copy_reduce`) and those without (`in_place_reduce`)."""

    def _offer(self) -> tuple[bool, bytes]:
        """Whether this member can go through memory, and its offer."""
        raise NotImplementedError

    def _start(self) -> None:
        """Do the work that is possible before the peers have opened."""

    def _map(self, peer: int, said: memoryview) -> bool:
        """Map the segments of a peer's offer; whether the peer can go through memory.

        ProtocolError for an offer that is none.
        """
        raise NotImplementedError

    def _other_way(self, peer: int, way: bytes, said: memoryview) -> None:
        """Read the offer of a peer with another `way`, which may end leases here."""

    def _unmapped(self) -> set[int]:
        """The peers of which no memory is mapped."""
        return set(self.peers) - set(self._theirs)

    def _proceed(self) -> None:
        """Go on through memory, as all members do."""
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
            # Most likely a peer died after it had opened: the report is on its way.
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
        """The ring from behind a rank to itself: the order of the sums in its chunk."""
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

    # Frames without data, and the ring.

    def _right(self, peer: int, header: Header) -> bool:
        """Whether a peer may send this frame now."""
        raise NotImplementedError

    def place(self, peer: int, header: Header) -> memoryview:
        if header.step < COPIED:
            # A peer that sends data has read an offer without memory.
            self._go_along_the_ring()
        if self._through == "ring":
            return super().place(peer, header)
        if header.length != len(WORD) or not self._right(peer, header):
            raise ProtocolError(f"{self.name}: rank {peer} says what cannot be")
        return memoryview(bytearray(len(WORD)))

    def flow(self, peer: int, header: Header) -> Flow | None:
        if header.step < COPIED:
            self._go_along_the_ring()
        return super().flow(peer, header) if self._through == "ring" else None

    def complete(self) -> bool:
        return self._through == "ring" and super().complete()

    def release(self) -> None:
        super().release()
        if self._through == "memory":
            self._count()
        if self.committed and self._unreachable:
            self._shared_scratch.refused()

    def _count(self) -> None:
        """Count the bytes that went through memory, for the operation and its links."""
        sent, received = self._moved()
        self.timing.sent += sum(sent.values())
        self.timing.received += sum(received.values())
        self._shared_scratch.moved(sent, received)

    def _moved(self) -> tuple[dict[int, int], dict[int, int]]:
        """Bytes to and from each peer."""
        raise NotImplementedError
