"""The moves of a reduction in one compiled loop, where its links are sockets.

The loop of the communication thread calls `drive` in place of its own waiting. The
compiled loop has the sockets between whole frames of others. With an unknown frame or a
fault it returns the sockets to the links, with the frames that are under way, and the
reduction goes on in Python from there.
"""

import os
from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pcp.runtime.collectives.schedule import MemberSchedule
from pcp.runtime.transport import mover
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.frame import Frame, PartialFrame, data_prefix
from pcp.runtime.transport.incoming import Flow
from pcp.runtime.transport.outgoing import OutgoingFrame
from pcp.runtime.transport.tcp import TcpLink

SEGMENT_BYTES = 128 << 10
"""Bytes of a frame at most: they are added and sent on while the cache has them."""
_WATCHFUL_MICROSECONDS = 100
_BUDGET = 16 << 20
"""Bytes moved before the thread looks at other things."""
_IDLE, _FOREIGN = 1, 2
Carriers = tuple[Loop, dict[int, TcpLink]]
"""The loop of a communication thread, and links of it to peers."""


class CompiledReduction(Protocol):
    """The part of a reduction that the compiled loop uses."""

    def came(self, elements: int) -> None:
        """Note elements that have come, and may go on."""
        ...

    def opened_by(self, peer: int) -> bool:
        """Whether data may go to this peer."""
        ...

    def resumed(self, peer: int, unread: PartialFrame) -> Flow:
        """The receiver of the rest of a frame that is partly received."""
        ...

    def unsent(self, index: int, start: int, nbytes: int) -> Frame:
        """The frame of a move that is partly sent."""
        ...

    def returned(self) -> None:
        """Go on in Python; or all moves are done."""
        ...


def plan_fits(plan: MemberSchedule) -> bool:
    """Whether all that comes can be added, or taken over, the moment it comes."""
    return not any(move.reduce and move.after for move in plan.moves if not move.sends)


class MoveMemory(NamedTuple):
    """The memory of a reduction's moves, and what is done in it."""

    values: memoryview
    out: memoryview
    """The bytes of the own operand, and of the result."""
    at: "array[int]"
    here: "array[int]"
    stops: Sequence[int]
    """Elements of each move: done, received, and up to where it goes."""
    scratch: Sequence[memoryview]
    """Room for what comes from each peer, 256 KiB."""
    addition: tuple[int, bool, int]
    """Its letter, whether what comes is the left operand, and the divisor or 0."""
    step: int
    """Elements of a frame."""


class CompiledMoves:
    """The compiled loop of one reduction, over the links of `carriers`."""

    def __init__(
        self,
        of: CompiledReduction,
        plan: MemberSchedule,
        key: tuple[int, int],
        carriers: Carriers,
        work: MoveMemory,
    ) -> None:
        loop, links = carriers
        crowded = plan.members > (os.cpu_count() or 1)
        self._watch = 0 if crowded else _WATCHFUL_MICROSECONDS
        self._of, self._links, self._loop = of, links, loop
        peers = self._peers = list(links)
        table, before = array("q"), array("q")
        for move, stop in zip(plan.moves, work.stops, strict=True):
            row = peers.index(move.peer), move.round, stop, move.sends, move.reduce
            table.extend([*row, move.ends, len(before), len(move.after)])
            before.extend(move.after)
        one = links[peers[0]]
        prefix = data_prefix(one.epoch, *key, unchecked=one.unchecked)
        assert mover.compiled is not None, "the links have compiled loops"
        memory = work.values, work.out, work.at, work.here, table, before
        self._moves = mover.compiled.Moves(
            prefix, *work.addition, work.step, *memory, tuple(work.scratch)
        )
        self._counts = dict.fromkeys(peers, (0, 0))
        for link in links.values():
            link.borrower = self
        loop.driver = self.drive

    def drive(self, others: int, pause: float) -> None:
        """Move data until the descriptor `others` is readable, or `pause` is over."""
        ends = tuple(
            link.ends(send=self._of.opened_by(peer))
            for peer, link in self._links.items()
        )
        milliseconds = min(1000, int(1e3 * pause + 0.999))
        limits = milliseconds, self._watch, _BUDGET
        why, which, elements = self._moves.run(ends, others, *limits)
        self._count()
        if elements:
            self._of.came(elements)
        if why == _FOREIGN:
            peer = self._peers[which]
            self._links[peer].take(self._moves.head(which))
        elif why != _IDLE:  # all is done, or the link meets the fault again
            self.give_back()
        if self._loop.driver == self.drive:
            for link in self._links.values():
                link.resume()

    def _count(self) -> None:
        for index, (peer, link) in enumerate(self._links.items()):
            old, new = self._counts[peer], self._moves.counts(index)
            if old != new:
                self._counts[peer] = new
                link.moved(new[0] - old[0], new[1] - old[1])

    # For links (`link.Borrower`).

    def midway(self, link: TcpLink) -> bool:
        """Whether a frame is partly sent on this link."""
        index = list(self._links.values()).index(link)
        return self._moves.unsent(index) is not None

    def give_back(self, *, goes_on: bool = True) -> None:
        """Return the sockets, with the frames that are under way."""
        if self._loop.driver != self.drive:
            return
        self._loop.driver = None
        for index, (peer, link) in enumerate(self._links.items()):
            head, unread, out = b"", None, None
            if (came := self._moves.unread(index)) is not None:
                unread = PartialFrame(*came)
            else:
                head = self._moves.head(index)
            if (left := self._moves.unsent(index)) is not None:
                move, start, nbytes, *state = left
                frame = self._of.unsent(move, start, nbytes)
                out = OutgoingFrame.resumed(frame, link.epoch, link.unchecked, *state)
            flow = None if unread is None else self._of.resumed(peer, unread)
            link.take_back(head, unread, flow, out)
        if goes_on:
            self._of.returned()
