"""A reduction that follows a schedule (`schedules`) of transfers."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from pcp.errors import ProtocolError
from pcp.runtime.collectives.direct import Contribution, pieces, segment_bytes
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.schedule import Schedule, edges
from pcp.runtime.memory.buffer_pool import ScratchLease, octets
from pcp.runtime.transport.frame import Header


@dataclass
class _Move:
    """One transfer of this member in one lane; `landed` counts elements."""

    step: int
    peer: int
    start: int
    stop: int
    sends: bool
    reduce: bool
    scratch: NDArray | None = None
    landed: int = 0


class Scheduled(Operation):
    """All members get the reduction, by the transfers of a schedule.

    Each lane of the array does this member's transfers one after the other:
    sends leave at once, and what must have arrived first is waited for. A peer
    may be ahead: what it sends too early waits in scratch memory, or in its
    final place where it only replaces what we have sent off long ago.
    """

    def __init__(
        self,
        peers: Sequence[int],
        descriptor: dict[str, Any],
        timeout: float,
        part: Contribution,
        plan: Schedule,
    ) -> None:
        super().__init__(peers, descriptor, timeout)
        self._reduction = part.reduction
        self._source = part.source.reshape(-1)
        self.bulk = part.source.nbytes
        self._members = plan.members
        self._loan = ScratchLease(part.pool)
        self._write = part.commit
        self._out = part.out
        self._lanes = [
            deque(_moves(plan, part.rank, lane, i * len(plan.transfers)))
            for i, lane in enumerate(edges(self._source.size, plan))
        ]
        self._incoming = {
            move.step: (move, lane)
            for lane in self._lanes
            for move in lane
            if not move.sends
        }
        wide = part.reduction.accumulator.itemsize
        self._step = max(1, segment_bytes(self._source.size * wide // 4) // wide)

    def begin(self) -> None:
        count, dtype = self._source.size, self._source.dtype
        wide = self._reduction.accumulator
        if self._out is None:
            self._out = self._loan.take(count, dtype)
        self._work = self._out if wide == dtype else self._loan.take(count, wide)
        self._work[:] = self._source
        for lane in self._lanes:
            self._advance(lane)

    def place(self, peer: int, header: Header) -> memoryview:
        move, _ = self._incoming.get(header.step, (None, None))
        if move is None or move.peer != peer:
            raise ProtocolError(
                f"{self.name}: rank {peer} sent what is not its to send"
            )
        start = move.start + move.landed
        stop = min(start + self._step, move.stop)
        room = self._room(move)[move.landed : move.landed + stop - start]
        if (header.offset, header.length) != (start, room.nbytes) or not room.size:
            raise ProtocolError(f"{self.name}: rank {peer} sent bytes out of place")
        return octets(room)

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        move, lane = self._incoming[header.step]
        move.landed += len(payload) // self._work.itemsize
        self._advance(lane)

    def complete(self) -> bool:
        return not any(self._lanes)

    def commit(self) -> Any:
        assert self._out is not None, "it has begun"
        self._reduction.finish(self._work, self._members, self._out)
        return self._write(self._out)

    def release(self) -> None:
        # After a failure a link may still be filling a segment.
        self._loan.settle(clean=self._voted and not self.pending.cancelled())

    def _advance(self, lane: "deque[_Move]") -> None:
        """Do all transfers of a lane that can be done now."""
        while lane and (lane[0].sends or lane[0].landed == _size(lane[0])):
            move = lane.popleft()
            span = self._work[move.start : move.stop]
            if move.sends:
                for a, b in pieces(move.start, move.stop, self._step):
                    self.send_data(move.peer, move.step, a, octets(self._work[a:b]))
            elif move.reduce and span.size:
                self._reduction.combine(span, self._room(move), span)

    def _room(self, move: _Move) -> NDArray:
        if not move.reduce:
            return self._work[move.start : move.stop]
        if move.scratch is None:
            move.scratch = self._loan.take(_size(move), self._work.dtype)
        return move.scratch


def _size(move: _Move) -> int:
    return move.stop - move.start


def _moves(plan: Schedule, rank: int, lane: Sequence[int], first: int) -> "list[_Move]":
    """A member's own transfers in the order in which it does them."""
    own = [
        _Move(
            first + index,
            transfer.dst if transfer.src == rank else transfer.src,
            lane[transfer.first],
            lane[transfer.last],
            transfer.src == rank,
            transfer.reduce,
        )
        for index, transfer in enumerate(plan.transfers)
        if rank in (transfer.src, transfer.dst)
    ]
    turn = [plan.transfers[move.step - first].round for move in own]
    order = sorted(range(len(own)), key=lambda i: (turn[i], not own[i].sends, i))
    return [own[i] for i in order]
