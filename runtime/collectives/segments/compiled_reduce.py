"""A reduction whose moves the compiled loop may make (`compiled_moves`).

The loop has the moves of a sum or mean of 32- or 64-bit numbers from `_compile` on, and
gives them back (`returned`) when all is over, or when something else is to be done:
`scheduled_reduce` goes on with them then.

A result that takes the place of its operand is made there. The loop keeps what was
there in `_out`, and exchanges the two before it gives the moves back; so the array of
the caller is as it was, unless all members have voted.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import PcpError, RuntimeFault, UsageError
from pcp.runtime.collectives.agreement import VOTE, many
from pcp.runtime.collectives.descriptor import open_payload
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.reduction import Reduction
from pcp.runtime.collectives.schedule import MemberSchedule, Move
from pcp.runtime.collectives.segments.compiled_moves import (
    SEGMENT_BYTES,
    CompiledLoop,
    MoveMemory,
    VotingFrames,
    first_writes,
    plan_fits,
)
from pcp.runtime.collectives.segments.segment_flow import FlatBuffer, SegmentFlow
from pcp.runtime.memory.buffer_pool import overlap, spans
from pcp.runtime.memory.dtypes import name_of
from pcp.runtime.transport.frame import (
    Frame,
    Kind,
    PartialFrame,
    pack_header,
    unpack_header,
)
from pcp.runtime.transport.incoming import Flow
from pcp.runtime.transport.mover import BULK_BYTES

_SUMS = {
    "float32": ord("f"),
    "float64": ord("d"),
    "int32": ord("i"),
    "uint32": ord("i"),
    "int64": ord("l"),
    "uint64": ord("l"),
}
"""The additions of the compiled loops, by the name of the element type."""


class CompiledReduce(Operation):
    """See the module. Subclasses set these, and make the moves in Python."""

    _plan: MemberSchedule
    _chunks: Sequence[tuple[int, int]]
    _reduction: Reduction
    _dtype: np.dtype[Any]
    _in_place: bool
    """Whether the result takes the place of the operand, `_values`."""
    _values: FlatBuffer
    _out: FlatBuffer
    _at: "array[int]"
    _here: "array[int]"
    _stop: list[int]
    """Elements of each move: up to where it is done, could be by now, and goes."""
    _step: int
    _missing: int
    """Elements that are to come."""
    _placed: dict[int, int]
    """The move whose segment a peer is sending."""
    _flowing: set[int]
    """The peers whose segment is added, or taken over, as it comes."""

    _compiled: CompiledLoop | None = None
    """The compiled loop, while it makes the moves."""
    _saved = _made_in_place = False
    """Whether the loop may make the result in the caller's array, and has made it."""

    # For subclasses to define.

    def _send_on(self, index: int, move: Move) -> None:
        """Send what is ready of a move."""
        raise NotImplementedError

    def _payload(self, move: Move, start: int, stop: int) -> memoryview:
        """The bytes of a range of elements that a move sends."""
        raise NotImplementedError

    def spare(self, nbytes: int) -> FlatBuffer:
        """Scratch memory of at least so many bytes."""
        raise NotImplementedError

    def back(self, buffer: FlatBuffer) -> None:
        """Take scratch memory back."""
        raise NotImplementedError

    def room(self, start: int, stop: int) -> memoryview:
        """The memory of a range of the result."""
        raise NotImplementedError

    def operands(
        self, move: Move, start: int, stop: int
    ) -> tuple[memoryview, memoryview]:
        """The memory of a range of the sums, and of what is added to what comes."""
        raise NotImplementedError

    def add(self, move: Move, came: NDArray, start: int, stop: int) -> None:
        """Add what has come to what is here; finish it if it was the last."""
        raise NotImplementedError

    def added(self, move: Move, start: int, stop: int) -> None:
        """Finish a range of a sum if this was the last addition."""
        raise NotImplementedError

    # To the loop, and back.

    def _compile(self) -> bool:
        """Leave the moves to the compiled loop, if they and the links suit it."""
        moves, wide = self._plan.moves, self._reduction.accumulator
        sizes = [stop - start for start, stop in self._chunks]
        code = self.sum_code
        large = min(sizes) * self.itemsize >= BULK_BYTES
        if (
            wide != self._dtype
            or code is None
            or not large
            or not plan_fits(self._plan)
        ):
            return False
        found, voting = self.group.compiled_loop(self.peers), None
        if found is not None and found.links.keys() == set(self.peers):
            voting = self._voting()
        found = found or self.group.compiled_loop({move.peer for move in moves})
        if found is None:
            return False
        mean = self._plan.members if self._reduction.op == "mean" else 0
        ranges = list(zip(self._at, self._stop, strict=True))
        saves = None
        if self._in_place and voting is not None and not self._users():
            saves = first_writes(self._plan, ranges)
        work = MoveMemory(
            self._values.octets,
            self._out.octets,
            self._at,
            self._here,
            self._stop,
            (code, self.sum_travels, mean),
            min(self._step, SEGMENT_BYTES // self.itemsize),
            saves,
        )
        self._unsent += 1
        self._compiled, self._waits_below = found, True
        self._saved = saves is not None
        found.add(self, self._plan, work, voting)
        self.timing.sent += self._unsent_bytes()
        return True

    def _users(self) -> list[Operation]:
        """The other operations under way that work in memory of the operand."""
        under_way = self.group.under_way
        others = [op for op in under_way if op is not self and op.given is not None]
        mine = self._memory if others else []
        return [op for op in others if overlap(spans(op.given), mine)]

    def _check_users(self) -> None:
        """UsageError if it or another reduction overwrites what the other one reads."""
        for other in self._users():
            if isinstance(other, CompiledReduce) and (
                self._in_place or other._in_place
            ):
                raise UsageError(
                    f"{other.title}, which is under way, reduces memory of the same "
                    "array: wait for that call first, or give each an array of its own"
                )

    @property
    def _memory(self) -> list[tuple[int, int]]:
        return spans(self._values.array)

    @property
    def overwritten(self) -> list[tuple[int, int]]:
        """The memory of the caller in which the loop makes the result."""
        return self._memory if self._saved else []

    def _voting(self) -> VotingFrames | None:
        """The frames that the compiled loop knows; None if each peer has its own."""
        if many(self.peers) or any(len(self.eager(peer)) for peer in self.peers):
            return None
        content = open_payload(self._said, b"")
        one = self._frame(Kind.OPEN, content)
        epoch = self.group.epoch
        first = pack_header(one, epoch) + content
        return VotingFrames(first, pack_header(self.vote_frame(), epoch))

    def _unsent_bytes(self) -> int:
        """The bytes of what this member has still to send."""
        both = zip(self._plan.moves, self._at, self._stop, strict=True)
        return self.itemsize * sum(stop - at for move, at, stop in both if move.sends)

    def end(self, error: PcpError | None = None, value: Any = None) -> None:
        self._leave(self)
        super().end(error, value)

    def _leave(self, without: "CompiledReduce | None" = None) -> None:
        """Take the moves back from the compiled loop."""
        if (compiled := self._compiled) is not None:
            compiled.give_back(without)
            self._compiled = None

    def on_lost(
        self, peer: int, error: RuntimeFault, *, left: bool = False, called: bool = True
    ) -> None:
        self._leave()  # it would wait for the peer
        super().on_lost(peer, error, left=left, called=called)

    def decided(self, commit: bool) -> None:
        self._leave()  # the result is not in `_out` yet, or the old values are
        super().decided(commit)

    def on_open(self, peer: int, payload: memoryview) -> None:
        super().on_open(peer, payload)
        if self._compiled is not None and peer in self.opened:
            self._compiled.note(self, peer)

    def on_done(self, peer: int, step: int) -> None:
        super().on_done(peer, step)
        if self._compiled is not None and step == VOTE:
            self._compiled.note(self, peer, voted=True)

    def _take_segment(self) -> None:
        """Have the result made in `_out`: a segment comes that Python takes."""
        if self._saved:
            self._leave()

    @property
    def itemsize(self) -> int:
        """The bytes of an element of the result."""
        return self._dtype.itemsize

    def move(self, index: int) -> Move:
        """A move of this member."""
        return self._plan.moves[index]

    @property
    def sum_code(self) -> int | None:
        """The letter of the addition in the compiled loops; None if they have none."""
        if self._reduction.op not in ("sum", "mean"):
            return None
        return _SUMS.get(name_of(self._reduction.accumulator))

    @property
    def sum_travels(self) -> bool:
        """Whether what arrives is the left operand."""
        return self._plan.sum_travels

    # For the loop (`compiled_moves.CompiledReduction`).

    @property
    def opened_peers(self) -> Iterable[int]:
        """The peers that have opened: data may go to them."""
        return self.opened

    def came(self, elements: int, first: float) -> None:
        """Note elements that have come, the first of all at this time."""
        self._missing -= elements
        self.timing.receive(elements * self.itemsize, first)

    def peer_opened(self, peer: int, when: float) -> None:
        """Note that a peer has opened, with the same frame as this member."""
        self._opened_by(peer, self.descriptor, memoryview(b""), when)

    def has_voted(self, when: float) -> None:
        """Note that the vote of this member is on its way."""
        self._voted, self.timing.voted = True, when
        self.agreement.vote()

    def peer_voted(self, peer: int) -> None:
        """Note a peer's vote."""
        self.on_done(peer, VOTE)

    def say_vote(self, peer: int) -> None:
        """Send this member's vote to a peer."""
        self.group.send(peer, self.vote_frame())

    def vote_frame(self) -> Frame:
        """The frame of this member's vote."""
        return self._frame(Kind.DONE, b"", VOTE)

    def resumed(self, peer: int, unread: PartialFrame) -> Flow:
        """The receiver of the rest of a frame that is partly received."""
        nbytes = unpack_header(unread.header).length
        stop = unread.start + nbytes // self.itemsize
        flow = SegmentFlow(self, unread.move, unread.start, stop, nbytes)
        flow.resume(unread)
        self._placed[peer] = unread.move
        self._flowing.add(peer)
        return flow

    def unsent(self, index: int, start: int, nbytes: int) -> Frame:
        """The frame of a move that is partly sent."""
        move, stop = self._plan.moves[index], start + nbytes // self.itemsize
        payload = self._payload(move, start, stop)
        self._unsent += 1
        return self._frame(Kind.DATA, payload, move.round, start, self._was_sent)

    def made(self) -> None:
        """Note that all moves are done, and all votes are here."""
        self._compiled, self._waits_below = None, False
        self._made_in_place, self._saved = self._saved, False

    def returned(self, *, over: bool) -> None:
        """Go on in Python; or come to the end, if it was `made`."""
        if not over:
            self._compiled, self._waits_below, self._saved = None, False, False
            self.timing.sent -= self._unsent_bytes()  # `send_data` counts them
            for index, move in enumerate(self._plan.moves):
                if move.sends:
                    self._send_on(index, move)
        self._was_sent()
