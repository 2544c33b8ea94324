"""A reduction that follows a schedule of transfers, segment by segment.

There is no stop between rounds: a segment goes on as soon as what it consists of has
been added, so that transfer, reduction and the next transfer overlap. Nothing is
copied first: a member's own values are read where they are, once, and what is finished
is received in its place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from pcp.errors import ProtocolError
from pcp.runtime.collectives.direct import Contribution, segment_bytes
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.schedule import Schedule, Transfer, ring, schedule
from pcp.runtime.memory.buffer_pool import ScratchLease, octets
from pcp.runtime.transport.frame import Header


@dataclass(frozen=True, slots=True)
class Move:
    """One transfer as its sender or receiver sees it, among that member's moves."""

    peer: int
    round: int
    first: int
    last: int
    sends: bool
    reduce: bool
    after: tuple[int, ...]
    """The moves that bring what this one sends or adds to; none: the own values."""
    then: tuple[int, ...]
    """The moves that are after this one."""
    ends: bool
    """Whether nothing is added to its chunks any more, here or elsewhere."""


@dataclass(frozen=True)
class MemberSchedule:
    """What one member does in a schedule, the same for arrays of all sizes."""

    members: int
    chunks: int
    sum_travels: bool
    moves: tuple[Move, ...]
    incoming: dict[tuple[int, int], list[int]]
    """The moves that receive, by peer and round."""

    @staticmethod
    def of(plan: Schedule, rank: int) -> "MemberSchedule":
        """The moves of a rank, in the order in which its sums need them."""
        own = [t for t in plan.transfers if rank in (t.src, t.dst)]
        own.sort(key=lambda t: (t.round, t.src != rank))
        moves = tuple(_moves(own, rank))
        facts = plan.members, plan.chunks, plan.sum_travels
        incoming: dict[tuple[int, int], list[int]] = {}
        for index, move in enumerate(moves):
            if not move.sends:
                incoming.setdefault((move.peer, move.round), []).append(index)
        return MemberSchedule(*facts, moves, incoming)


def _moves(own: Sequence[Transfer], rank: int) -> Iterator[Move]:
    added = {c: i for i, t in enumerate(own) if t.reduce for c in _chunks(t)}
    after, then = _origins(own, rank), [list[int]() for _ in own]
    for index, origins in enumerate(after):
        for before in origins:
            then[before].append(index)
    for index, t in enumerate(own):
        sends = t.src == rank
        peer = t.dst if sends else t.src
        ends = t.reduce and not sends and all(added[c] == index for c in _chunks(t))
        what = (peer, t.round, t.first, t.last, sends, t.reduce)
        yield Move(*what, after[index], tuple(then[index]), ends)


def _origins(own: Sequence[Transfer], rank: int) -> list[tuple[int, ...]]:
    """For each transfer the ones that brought what it sends or adds to."""
    latest: dict[int, int] = {}
    origins = []
    for index, t in enumerate(own):
        waits = t.src == rank or t.reduce
        found = {latest[c] for c in _chunks(t) if waits and c in latest}
        origins.append(tuple(sorted(found)))
        if t.dst == rank:
            latest |= dict.fromkeys(_chunks(t), index)
    return origins


def _chunks(transfer: Transfer) -> range:
    return range(transfer.first, transfer.last)


@lru_cache(64)
def by_name(name: str, members: int, rank: int) -> MemberSchedule:
    """A rank's part in the algorithm of this name; UsageError."""
    return MemberSchedule.of(schedule(name, members), rank)


@lru_cache(64)
def along_ring(
    order: tuple[int, ...], rank: int, *, gather: bool = True, root: int | None = None
) -> MemberSchedule:
    """A rank's part in a `ring`."""
    return MemberSchedule.of(ring(order, gather=gather, root=root), rank)


class _Buffer:
    """A flat array and its bytes, of which parts are taken."""

    __slots__ = ("array", "itemsize", "octets")

    def __init__(self, array: NDArray) -> None:
        self.array, self.itemsize, self.octets = array, array.itemsize, octets(array)

    def part(self, start: int, stop: int) -> memoryview:
        """The bytes of a range of elements."""
        return self.octets[start * self.itemsize : stop * self.itemsize]


class ScheduledReduce(Operation):
    """See the module. `chunks` are the ranges of elements that `plan` numbers.

    `commit` gets the flat result, of which only those chunks are valid that the plan
    brings to this member. A peer may be ahead: what it sends too early waits in
    scratch memory.
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
        self._given = part.out
        self._placed: dict[int, int] = {}
        """The move whose segment a peer is sending."""
        self._rooms: dict[tuple[int, int], _Buffer] = {}
        """What is to be added, by move and first element."""
        self._spare: list[_Buffer] = []

    def begin(self) -> None:
        count, wide = self._source.size, self._reduction.accumulator
        largest = max(stop - start for start, stop in self._chunks)
        self._step = max(1, segment_bytes(largest * wide.itemsize) // wide.itemsize)
        self._values = _Buffer(self._reduction.widen(self._source))
        given = self._given
        out = self._lease.take(count, self._dtype) if given is None else given
        self._out = self._work = _Buffer(out)
        if wide != self._dtype:
            self._work = _Buffer(self._lease.take(count, wide))
        moves, chunks = self._plan.moves, self._chunks
        # Of each move: up to where it is done, could be done by now, and goes.
        self._at = [chunks[move.first][0] for move in moves]
        self._stop = [chunks[move.last - 1][1] for move in moves]
        both = zip(moves, self._at, self._stop, strict=True)
        self._here = [stop if move.sends else at for move, at, stop in both]
        self._missing = sum(self._stop) - sum(self._here)
        for index, move in enumerate(moves):
            if move.sends and not move.after:
                self._go_on(index)

    def place(self, peer: int, header: Header) -> memoryview:
        start = header.offset
        for index in self._plan.incoming.get((peer, header.step), ()):
            stop = min(start + self._step, self._stop[index])
            if self._here[index] == start < stop:
                room = self._room_of(index, start, stop)
                if header.length == len(room):
                    self._placed[peer] = index
                    return room
        raise ProtocolError(
            f"{self.name}: rank {peer} sent {header.length} bytes of step "
            f"{header.step} at {start}, which are not its to send now"
        )

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        index = self._placed[peer]
        self._here[index] = min(header.offset + self._step, self._stop[index])
        self._go_on(index)

    def complete(self) -> bool:
        return not self._missing

    def commit(self) -> Any:
        return self._write(self._out.array)

    def release(self) -> None:
        # After a failure a link may still be filling a segment.
        self._lease.settle(clean=self._voted and not self.pending.cancelled())

    def _room_of(self, index: int, start: int, stop: int) -> memoryview:
        """Where a segment goes: what is to be added is still in the cache then."""
        if not self._plan.moves[index].reduce:
            return self._out.part(start, stop)
        room = self._rooms.get((index, start))
        if room is None:
            wide, spare = self._reduction.accumulator, self._spare
            room = spare.pop() if spare else _Buffer(self._lease.take(self._step, wide))
            self._rooms[index, start] = room
        return room.part(0, stop - start)

    def _go_on(self, first: int) -> None:
        """Do what can be done of a move now, and then of those after it."""
        todo = [first]
        for index in todo:
            move, start = self._plan.moves[index], self._at[index]
            self._advance(index, move)
            if done := self._at[index] - start:
                todo += move.then
                self._missing -= 0 if move.sends else done

    def _advance(self, index: int, move: Move) -> None:
        at, here = self._at[index], self._here[index]
        while at < here:
            end = min(at + self._step, here)
            if move.after and not self._reached(move.after, end):
                break
            if move.sends:
                self._send(move, at, end)
            elif move.reduce:
                self._add(move, self._rooms.pop((index, at)), at, end)
            self._at[index] = at = end

    def _reached(self, moves: Sequence[int], end: int) -> bool:
        """Whether all of these are done up to `end`, as far as they go."""
        for index in moves:
            if self._at[index] < end and self._at[index] < self._stop[index]:
                return False
        return True

    def _send(self, move: Move, start: int, stop: int) -> None:
        buffer = self._work if move.after else self._values
        if not move.reduce:
            buffer = self._out
        self.send_data(move.peer, move.round, start, buffer.part(start, stop))

    def _add(self, move: Move, room: _Buffer, start: int, stop: int) -> None:
        """Add what has come to what is here; finish it if it was the last."""
        came, total = room.array[: stop - start], self._work.array[start:stop]
        here = total if move.after else self._values.array[start:stop]
        pair = (came, here) if self._plan.sum_travels else (here, came)
        self._reduction.combine(*pair, total)
        self._spare.append(room)
        if move.ends:
            # The same memory twice would be copied onto itself.
            out = total if self._work is self._out else self._out.array[start:stop]
            self._reduction.finish(total, self._size, out)
