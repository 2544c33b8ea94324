"""A reduction that follows a schedule (`schedule`) of transfers."""

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
    """One transfer of this member in one channel; `landed` counts elements."""

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

    Each channel does this member's transfers one after the other: sends leave at
    once, and a later transfer waits for the data of an earlier one. A peer may be
    ahead: its early data waits in scratch memory, or in its final place where it
    only replaces elements that were sent before.
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
        self._lease = ScratchLease(part.pool)
        self._write = part.commit
        self._out = part.out
        self._channels = [
            deque(_moves(plan, part.rank, channel, i * len(plan.transfers)))
            for i, channel in enumerate(edges(self._source.size, plan))
        ]
        self._incoming = {
            move.step: (move, channel)
            for channel in self._channels
            for move in channel
            if not move.sends
        }
        wide = part.reduction.accumulator.itemsize
        self._step = max(1, segment_bytes(self._source.size * wide // 4) // wide)

    def begin(self) -> None:
        count, dtype = self._source.size, self._source.dtype
        wide = self._reduction.accumulator
        if self._out is None:
            self._out = self._lease.take(count, dtype)
        self._work = self._out if wide == dtype else self._lease.take(count, wide)
        self._work[:] = self._source
        for channel in self._channels:
            self._advance(channel)

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
        move, channel = self._incoming[header.step]
        move.landed += len(payload) // self._work.itemsize
        self._advance(channel)

    def complete(self) -> bool:
        return not any(self._channels)

    def commit(self) -> Any:
        assert self._out is not None, "it has begun"
        self._reduction.finish(self._work, self._members, self._out)
        return self._write(self._out)

    def release(self) -> None:
        # After a failure a link may still be filling a segment.
        self._lease.settle(clean=self._voted and not self.pending.cancelled())

    def _advance(self, channel: "deque[_Move]") -> None:
        """Do all transfers of a channel that can be done now."""
        while channel and (channel[0].sends or channel[0].landed == _size(channel[0])):
            move = channel.popleft()
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
            move.scratch = self._lease.take(_size(move), self._work.dtype)
        return move.scratch


def _size(move: _Move) -> int:
    return move.stop - move.start


def _moves(
    plan: Schedule, rank: int, channel: Sequence[int], first: int
) -> "list[_Move]":
    """A member's own transfers in one channel, in the order of their rounds."""
    own = [
        _Move(
            first + index,
            transfer.dst if transfer.src == rank else transfer.src,
            channel[transfer.first],
            channel[transfer.last],
            transfer.src == rank,
            transfer.reduce,
        )
        for index, transfer in enumerate(plan.transfers)
        if rank in (transfer.src, transfer.dst)
    ]
    turn = [plan.transfers[move.step - first].round for move in own]
    order = sorted(range(len(own)), key=lambda i: (turn[i], not own[i].sends, i))
    return [own[i] for i in order]
