"""The algorithms without a schedule: eager, along the ring, or directly.

* `EagerReduce`: small reductions; every member gets every operand in the eager
  payloads and reduces in rank order. One message delay. `EagerScatter`: of
  each operand only the member's own part.
* `Ring`: all_reduce and reduce_scatter of more; 2(N-1) or N-1 steps along the
  ring of ranks (Patarasuk & Yuan, 2009). There is no stop between steps: a
  segment goes on to the next step as soon as it is reduced, so that transfer,
  reduction and the next transfer overlap.
* `Exchange`: all_gather, all_to_all, permute, send and recv; each member sends
  its pieces directly to their members.
* `Chain`: large broadcasts, forwarded segment by segment.

The order of a reduction is declared in `reduction`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import ProtocolError
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.reduction import Reduction
from pcp.runtime.memory.buffer_pool import BufferPool, ScratchLease, octets
from pcp.runtime.transport.frame import Header
from pcp.wire import EAGER_BYTES

_LARGEST_SEGMENT = 512 << 10
_SMALLEST_SEGMENT = 64 << 10

Commit = Callable[[], Any]


def segment_bytes(chunk_bytes: int) -> int:
    """The bytes of a DATA frame for chunks of this size."""
    return min(_LARGEST_SEGMENT, max(_SMALLEST_SEGMENT, chunk_bytes // 4))


def pieces(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """[start, stop) in consecutive ranges of at most `step`."""
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


@dataclass(frozen=True)
class Contribution:
    """The operand of one member in a reduction, and the place of its result."""

    rank: int
    source: NDArray
    reduction: Reduction
    commit: Callable[[NDArray], Any]
    """Takes the result when all have voted; returns the value of the operation."""
    pool: BufferPool
    out: NDArray | None = None
    """A new flat array to make the result in; without one it is made in scratch."""


class EagerReduce(Operation):
    """A small reduction in rank order."""

    def __init__(
        self,
        peers: Sequence[int],
        descriptor: dict[str, Any],
        timeout: float,
        part: Contribution,
    ) -> None:
        super().__init__(peers, descriptor, timeout)
        self._source = part.source
        self._reduction = part.reduction
        self._write = part.commit
        # A copy, since the caller's array may change later.
        self._parts: dict[int, NDArray] = {part.rank: part.source.copy()}

    def eager(self, peer: int) -> memoryview:
        return octets(self._source)

    def accept(self, peer: int, payload: memoryview) -> None:
        if len(payload) != self._source.nbytes:
            raise ProtocolError(f"rank {peer} sent {len(payload)} bytes to reduce")
        flat = np.frombuffer(payload, np.uint8).view(self._source.dtype)
        self._parts[peer] = flat.reshape(self._source.shape)

    def commit(self) -> Any:
        ordered = [self._parts[rank] for rank in sorted(self._parts)]
        return self._write(self._reduction.sequential(ordered))


class EagerScatter(EagerReduce):
    """A small reduction of which each member gets, and is sent, its elements alone.

    `chunks[r]` is the range of rank r's; `commit` gets the own ones, flat.
    """

    def __init__(
        self,
        peers: Sequence[int],
        descriptor: dict[str, Any],
        timeout: float,
        part: Contribution,
        *,
        chunks: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__(peers, descriptor, timeout, part)
        self._chunks = chunks
        self._whole = self._source.reshape(-1)
        self._source = self._of(part.rank)
        self._parts = {part.rank: self._source.copy()}

    def _of(self, rank: int) -> NDArray:
        start, stop = self._chunks[rank]
        return self._whole[start:stop]

    def eager(self, peer: int) -> memoryview:
        return octets(self._of(peer))


class Ring(Operation):
    """A large reduction along the ring; with `gather`, all members get all of it.

    `chunks[r]` is the range of elements that rank r reduces last and owns; `order`
    is the order of the ranks along the ring. `commit` gets the flat result, of which
    only the own chunk is valid without `gather`.
    """

    def __init__(
        self,
        peers: Sequence[int],
        descriptor: dict[str, Any],
        timeout: float,
        part: Contribution,
        *,
        chunks: Sequence[tuple[int, int]],
        gather: bool,
        order: Sequence[int],
    ) -> None:
        super().__init__(peers, descriptor, timeout)
        self._rank, self._size = part.rank, len(chunks)
        self._order = order
        self._place = self._order.index(part.rank)
        self._next = self._order[(self._place + 1) % self._size]
        self._previous = self._order[self._place - 1]
        self._chunks = chunks
        self._reduction = part.reduction
        self._lease = ScratchLease(part.pool)
        self._write = part.commit
        self._given = part.out
        source = part.source
        self._source = source.reshape(-1)
        self.bulk = source.nbytes
        self._dtype = source.dtype
        self._steps = (2 if gather else 1) * (self._size - 1)
        self._expected: Iterator[tuple[int, int, int]] = iter(())
        self._now: tuple[int, int, int] | None = None

    def begin(self) -> None:
        count, wide = self._source.size, self._reduction.accumulator
        largest = max(stop - start for start, stop in self._chunks)
        self._step = max(1, segment_bytes(largest * wide.itemsize) // wide.itemsize)
        self._expected = self._incoming()
        self._now = next(self._expected, None)
        self._source = self._reduction.widen(self._source)
        given = self._given
        self._out = self._lease.take(count, self._dtype) if given is None else given
        same = wide == self._dtype
        self._work = self._out if same else self._lease.take(count, wide)
        self._scratch = self._lease.take(self._step, wide)
        start, stop = self._chunks[self._previous]
        for a, b in pieces(start, stop, self._step):
            self._forward(0, a, self._source[a:b])

    def place(self, peer: int, header: Header) -> memoryview:
        now = self._now
        if now is None or peer != self._previous:
            raise ProtocolError(f"{self.name}: rank {peer} sent more than its part")
        step, a, b = now
        room = self._scratch[: b - a] if self._reducing(step) else self._out[a:b]
        if (header.step, header.offset, header.length) != (step, a, room.nbytes):
            raise ProtocolError(
                f"{self.name}: rank {peer} sent step {header.step} at "
                f"{header.offset}, expected step {step} at {a}"
            )
        return octets(room)

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        assert self._now is not None, "place has accepted this segment"
        step, a, b = self._now
        self._now = next(self._expected, None)
        outgoing = self._out[a:b]
        if self._reducing(step):
            work = self._work[a:b]
            self._reduction.combine(self._scratch[: b - a], self._source[a:b], work)
            if step == self._size - 2:
                # The same memory twice would be copied onto itself.
                outgoing = work if self._work is self._out else outgoing
                self._reduction.finish(work, self._size, outgoing)
            else:
                outgoing = work
        if step + 1 < self._steps:
            self._forward(step + 1, a, outgoing)

    def complete(self) -> bool:
        return self._now is None

    def commit(self) -> Any:
        return self._write(self._out)

    def release(self) -> None:
        # After a failure a link may still be filling a segment.
        whole = self._now is None and self._voted
        self._lease.settle(clean=whole and not self.pending.cancelled())
        # It refers to this operation: without that, unused arrays are freed at once.
        self._expected = iter(())

    def _forward(self, step: int, offset: int, segment: NDArray) -> None:
        self.send_data(self._next, step, offset, octets(segment))

    def _reducing(self, step: int) -> bool:
        return step < self._size - 1

    def _incoming(self) -> Iterator[tuple[int, int, int]]:
        """The segments that this rank receives: (step, first, last) in order."""
        for step in range(self._steps):
            if self._reducing(step):
                owner = (self._place - step - 2) % self._size
            else:
                owner = (self._place - (step - self._size + 1) - 1) % self._size
            start, stop = self._chunks[self._order[owner]]
            for a, b in pieces(start, stop, self._step):
                yield step, a, b


class Exchange(Operation):
    """Pieces sent directly: `outgoing[peer]` leaves, `room(peer, theirs)` fills.

    `room` returns the memory for a peer's piece, given the descriptor of its OPEN
    frame; an empty view when it sends none. With `agreed=False` the members do
    not vote (send and recv, whose two ends finish on their own).
    """

    def __init__(
        self,
        peers: Sequence[int],
        descriptor: dict[str, Any],
        timeout: float,
        *,
        outgoing: dict[int, memoryview],
        room: Callable[[int, dict[str, Any]], memoryview],
        commit: Commit,
        agreed: bool = True,
        free: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(peers, descriptor, timeout)
        self._outgoing = outgoing
        self._room = room
        self._write = commit
        self._cursor: dict[int, int] = {}
        self._views: dict[int, memoryview] = {}
        self.votes = agreed
        self.free = free
        self.bulk = largest = max(map(len, outgoing.values()), default=0)
        self.buffered = not agreed and 0 < largest <= EAGER_BYTES

    def eager(self, peer: int) -> memoryview | bytes:
        view = self._outgoing.get(peer, b"")
        return view if len(view) <= EAGER_BYTES else b""

    def begin(self) -> None:
        for peer, view in self._outgoing.items():
            if len(view) > EAGER_BYTES:
                for a, b in pieces(0, len(view), segment_bytes(len(view))):
                    self.send_data(peer, 0, a, view[a:b])

    def accept(self, peer: int, payload: memoryview) -> None:
        view = self._room(peer, self.opened[peer])
        small = len(view) <= EAGER_BYTES
        if len(payload) != (len(view) if small else 0):
            raise ProtocolError(
                f"{self.name}: rank {peer} sent {len(payload)} bytes, not {len(view)}"
            )
        self._views[peer] = view
        self._cursor[peer] = len(view) if small else 0
        if len(payload):
            view[:] = payload

    def place(self, peer: int, header: Header) -> memoryview:
        view, at = self._views.get(peer), self._cursor.get(peer, 0)
        if view is None or header.offset != at or at + header.length > len(view):
            raise ProtocolError(f"{self.name}: rank {peer} sent bytes out of place")
        return view[at : at + header.length]

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        self._cursor[peer] += header.length

    def complete(self) -> bool:
        return all(self._cursor[p] == len(v) for p, v in self._views.items())

    def commit(self) -> Any:
        return self._write()


class Chain(Operation):
    """A large broadcast along `order`, the root first."""

    def __init__(
        self,
        order: Sequence[int],
        descriptor: dict[str, Any],
        timeout: float,
        *,
        rank: int,
        view: memoryview,
        commit: Commit,
    ) -> None:
        super().__init__([r for r in order if r != rank], descriptor, timeout)
        place = order.index(rank)
        self._from = order[place - 1] if place else None
        self._to = order[place + 1] if place + 1 < len(order) else None
        self._view = view
        self.bulk = len(view)
        self._at = len(view) if self._from is None else 0
        self._write = commit

    def begin(self) -> None:
        if self._from is None:
            for a, b in pieces(0, len(self._view), segment_bytes(len(self._view))):
                self._forward(a, self._view[a:b])

    def place(self, peer: int, header: Header) -> memoryview:
        end = self._at + header.length
        if peer != self._from or header.offset != self._at or end > len(self._view):
            raise ProtocolError(f"{self.name}: rank {peer} sent bytes out of place")
        return self._view[self._at : end]

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        self._at += header.length
        self._forward(header.offset, payload)

    def complete(self) -> bool:
        return self._at == len(self._view)

    def commit(self) -> Any:
        return self._write()

    def _forward(self, offset: int, view: memoryview) -> None:
        if self._to is not None:
            self.send_data(self._to, 0, offset, view)
