"""A reduction that follows a schedule of transfers, segment by segment.

There is no stop between rounds: a segment is sent on as soon as its operands have been
added, so that transfer, reduction and the next transfer overlap. No operand is copied
first: a member's own values are read in place, once, and finished values are received
in place.
"""

from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from pcp.errors import ProtocolError
from pcp.runtime.collectives.direct import Contribution, segment_bytes
from pcp.runtime.collectives.schedule import MemberSchedule, Move
from pcp.runtime.collectives.segments.compiled_reduce import CompiledReduce
from pcp.runtime.collectives.segments.segment_flow import FlatBuffer, SegmentFlow
from pcp.runtime.memory.buffer_pool import ScratchLease
from pcp.runtime.transport.frame import Header
from pcp.runtime.transport.incoming import Flow


class ScheduledReduce(CompiledReduce):
    """See the module. `chunks` are the ranges of elements that `plan` numbers.

    `commit` gets the flat result, of which only those chunks are valid that the plan
    brings to this member. A peer may be ahead: what it sends too early waits in
    scratch memory.

    A segment is what is ready when it is sent, up to what suits the link. Of each move
    at most one large segment is on its way to the kernel, and the next one has all that
    got ready meanwhile.
    """

    def __init__(
        self,
        peers: Sequence[int],
        descriptor: dict[str, Any],
        timeout: float,
        part: Contribution,
        plan: MemberSchedule,
        chunks: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__(peers, descriptor, timeout)
        self._plan, self._chunks = plan, chunks
        self._rank, self._size = part.rank, plan.members
        self._reduction = part.reduction
        self._source = part.source.reshape(-1)
        self._dtype = part.source.dtype
        self.bulk = part.source.nbytes
        self._lease = ScratchLease(part.pool)
        self._write = part.commit
        self._given, self._in_place = part.out, part.in_place
        self._placed: dict[int, int] = {}
        """The move whose segment a peer is sending."""
        self._flowing: set[int] = set()
        """The peers whose segment is added, or taken over, as it comes."""
        self._rooms: dict[tuple[int, int], tuple[FlatBuffer, int]] = {}
        """Data that is to be added, and its end, by move and first element."""
        self._spare: list[FlatBuffer] = []
        self._full: set[int] = set()
        """The moves of which a large segment is on its way to the kernel."""

    @property
    def partners(self) -> Iterable[int] | None:
        return {move.peer for move in self._plan.moves}

    def begin(self) -> None:
        count, wide = self._source.size, self._reduction.accumulator
        largest = max(stop - start for start, stop in self._chunks)
        self._step = max(1, segment_bytes(largest * wide.itemsize) // wide.itemsize)
        self._suits = {
            peer: max(self._step, self.group.suits(peer) // wide.itemsize)
            for peer in self.peers
        }
        self._values = FlatBuffer(self._reduction.widen(self._source))
        self._check_users()
        given = self._given
        out = self._lease.take(count, self._dtype) if given is None else given
        self._out = self._work = FlatBuffer(out)
        if wide != self._dtype:
            self._work = FlatBuffer(self._lease.take(count, wide))
        moves, chunks = self._plan.moves, self._chunks
        # Of each move: up to where it is done, could be done by now, and goes.
        self._at = array("q", [chunks[move.chunks[0]][0] for move in moves])
        self._stop = [chunks[move.chunks[1] - 1][1] for move in moves]
        both = zip(moves, self._at, self._stop, strict=True)
        here = [stop if move.sends else at for move, at, stop in both]
        self._missing = sum(self._stop) - sum(here)
        self._here = array("q", here)
        if self._compile():
            return
        for index, move in enumerate(moves):
            if move.sends and not move.after:
                self._go_on(index)

    def place(self, peer: int, header: Header) -> memoryview:
        self._take_segment()
        index, stop = self._due(peer, header)
        self._placed[peer] = index
        return self._room_of(index, header.offset, stop)

    def flow(self, peer: int, header: Header) -> Flow | None:
        """The receiver of a segment that can be added as it comes, else None."""
        self._take_segment()
        index, stop = self._due(peer, header)
        move, start = self._plan.moves[index], header.offset
        ready = move.reduce and self._at[index] == start
        if move.reduce and not (
            ready and self._reached(move.after, start, stop) == stop
        ):
            return None
        self._placed[peer] = index
        self._flowing.add(peer)
        return SegmentFlow(self, index, start, stop, header.length)

    def _due(self, peer: int, header: Header) -> tuple[int, int]:
        """The move of a segment, and its end; ProtocolError if it is not due."""
        start, itemsize = header.offset, self._reduction.accumulator.itemsize
        for index in self._plan.incoming.get((peer, header.step), ()):
            reduce = self._plan.moves[index].reduce
            count, odd = divmod(header.length, itemsize if reduce else self.itemsize)
            stop = start + count
            if self._here[index] == start < stop <= self._stop[index] and not odd:
                return index, stop
        raise ProtocolError(
            f"{self.name}: rank {peer} sent {header.length} bytes of step "
            f"{header.step} at {start}, which are not its to send now"
        )

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        index = self._placed[peer]
        reduce = self._plan.moves[index].reduce
        size = self._reduction.accumulator.itemsize if reduce else self.itemsize
        end = header.offset + header.length // size
        if peer not in self._flowing:
            self._here[index] = end
            self._go_on(index)
            return
        self._flowing.discard(peer)
        self._missing -= end - self._at[index]
        self._at[index] = self._here[index] = end
        for after in self._plan.moves[index].then:
            self._go_on(after)

    def complete(self) -> bool:
        return not self._missing

    def commit(self) -> Any:
        made = self._values if self._made_in_place else self._out
        return self._write(made.array)

    def release(self) -> None:
        # After a failure a link may still be filling a segment.
        self._lease.settle(clean=self._voted)

    # For segments that are processed as they come.

    def room(self, start: int, stop: int) -> memoryview:
        """The memory of a range of the result."""
        return self._out.part(start, stop)

    def operands(
        self, move: Move, start: int, stop: int
    ) -> tuple[memoryview, memoryview]:
        """The memory of a range of the sums, and of what is added to what comes."""
        total = self._work.part(start, stop)
        return total, total if move.after else self._values.part(start, stop)

    def spare(self, nbytes: int) -> FlatBuffer:
        """Scratch memory of at least so many bytes."""
        wide = self._reduction.accumulator
        for index, buffer in enumerate(self._spare):
            if len(buffer.octets) >= nbytes:
                return self._spare.pop(index)
        return FlatBuffer(self._lease.take(-(-nbytes // wide.itemsize), wide))

    def back(self, buffer: FlatBuffer) -> None:
        """Take scratch memory back."""
        self._spare.append(buffer)

    # All segments.

    def _room_of(self, index: int, start: int, stop: int) -> memoryview:
        """Where a segment goes: what is to be added is still in the cache then."""
        if not self._plan.moves[index].reduce:
            return self._out.part(start, stop)
        room, _ = self._rooms.get((index, start), (None, 0))
        if room is None or room.array.size < stop - start:
            size = self._reduction.accumulator.itemsize
            room = self.spare(max(self._step, stop - start) * size)
        self._rooms[index, start] = room, stop
        return room.part(0, stop - start)

    def _go_on(self, first: int) -> None:
        """Do what can be done of a move now, and then of those after it."""
        todo = [first]
        for index in todo:
            move, start = self._plan.moves[index], self._at[index]
            if move.sends:
                self._send_on(index, move)
                continue
            self._advance(index, move)
            if done := self._at[index] - start:
                todo += move.then
                self._missing -= done

    def _advance(self, index: int, move: Move) -> None:
        """Take the segments of a move that are here, in their order."""
        at, here = self._at[index], self._here[index]
        if not move.reduce:
            self._at[index] = here
            return
        while at < here:
            room, end = self._rooms[index, at]
            if self._reached(move.after, at, end) < end:
                break
            del self._rooms[index, at]
            self.add(move, room.array[: end - at], at, end)
            self._spare.append(room)
            self._at[index] = at = end

    def _reached(self, moves: Sequence[int], at: int, end: int) -> int:
        """Up to where in [at, end) all of these are done, as far as they go."""
        for index in moves:
            if self._at[index] < self._stop[index]:
                end = min(end, max(at, self._at[index]))
        return end

    def _send_on(self, index: int, move: Move) -> None:
        """Send what is ready of a move, if it is worth it."""
        if self._compiled is not None:
            return
        stop, most = self._stop[index], self._suits[move.peer]
        while (at := self._at[index]) < stop and index not in self._full:
            end = self._reached(move.after, at, stop)
            if end - at < self._step and end < stop:
                return
            # Before it is sent: that may end here again.
            self._at[index] = end = min(end, at + most)
            taken = None
            if most > self._step:
                self._full.add(index)
                taken = partial(self._taken, index, move)
            payload = self._payload(move, at, end)
            self.send_data(move.peer, move.round, at, payload, taken)

    def _payload(self, move: Move, start: int, stop: int) -> memoryview:
        buffer = self._work if move.after else self._values
        return (buffer if move.reduce else self._out).part(start, stop)

    def _taken(self, index: int, move: Move) -> None:
        self._full.discard(index)
        self._send_on(index, move)

    def add(self, move: Move, came: NDArray, start: int, stop: int) -> None:
        """Add what has come to what is here; finish it if it was the last."""
        total = self._work.array[start:stop]
        here = total if move.after else self._values.array[start:stop]
        pair = (came, here) if self._plan.sum_travels else (here, came)
        self._reduction.combine(*pair, total)
        self.added(move, start, stop)

    def added(self, move: Move, start: int, stop: int) -> None:
        """Finish a range of a sum if this was the last addition."""
        if move.ends and start < stop:
            total = self._work.array[start:stop]
            # The same memory twice would be copied onto itself.
            out = total if self._work is self._out else self._out.array[start:stop]
            self._reduction.finish(total, self._size, out)
