"""The algorithms without a schedule: eager, or directly.

* `EagerReduce`: small reductions; every member gets every operand in the eager
  payloads and reduces in rank order. One message delay. `EagerScatter`: of
  each operand only the member's own part.
* `Exchange`: all_gather, all_to_all, permute, send and recv; each member sends
  its pieces directly to their members.
* `Chain`: large broadcasts, forwarded segment by segment.

Larger reductions follow a schedule (`scheduled_reduce`); the order of a reduction is
declared in `reduction`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pcp.errors import ProtocolError
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.reduction import Reduction
from pcp.runtime.memory.buffer_pool import BufferPool, octets
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


@dataclass(slots=True)
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
    in_place: bool = False
    """Whether the result takes the place of `source`: it may be made there, if what
    was there can be put back."""


class EagerReduce(Operation):
    """A small reduction in rank order; in `target` if there is one, without `commit`.

    That may be the operand, of which there is a copy by then.
    """

    def __init__(
        self,
        peers: Sequence[int],
        descriptor: dict[str, Any],
        timeout: float,
        part: Contribution,
        target: NDArray | None = None,
    ) -> None:
        super().__init__(peers, descriptor, timeout)
        self._target = target
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
        if self._target is not None:
            return self._reduction.sequential(ordered, self._target)
        return self._write(self._reduction.sequential(ordered))


class EagerScatter(EagerReduce):
    """A small reduction of which each member only receives the operands of its part.

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
        self._partners: Iterable[int] | None = None
        self._outgoing = outgoing
        self._room = room
        self._write = commit
        self._cursor: dict[int, int] = {}
        self._views: dict[int, memoryview] = {}
        self.votes = agreed
        self.free = free
        self.bulk = largest = max(map(len, outgoing.values()), default=0)
        self.buffered = not agreed and 0 < largest <= EAGER_BYTES

    def only(self, partners: Iterable[int]) -> Self:
        """The exchange; pieces go between this member and `partners` alone."""
        self._partners = partners
        return self

    @property
    def partners(self) -> Iterable[int] | None:
        return self._partners

    def eager(self, peer: int) -> memoryview | bytes:
        view = self._outgoing.get(peer, b"")
        return view if len(view) <= EAGER_BYTES else b""

    def begin(self) -> None:
        for peer, view in self._outgoing.items():
            if len(view) > EAGER_BYTES:
                step = max(segment_bytes(len(view)), self.group.suits(peer))
                for a, b in pieces(0, len(view), step):
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

    @property
    def partners(self) -> Iterable[int] | None:
        return [peer for peer in (self._from, self._to) if peer is not None]

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
