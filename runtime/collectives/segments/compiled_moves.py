"""The moves of reductions in one compiled loop, where their links are sockets.

The loop of the communication thread calls `drive` in place of its own waiting. The
compiled loop has the sockets between whole frames of others. With an unknown frame or a
fault it returns the sockets to the links, with the frames that are under way, and the
reductions go on in Python from there.

Several reductions may be under way at once. Among few members the loop also reads the
OPEN frames of the peers, which are the same as this member's, and sends and reads the
votes: Python is asked again when all is over.
"""

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from numpy.typing import NDArray

from pcp.runtime.collectives.schedule import MemberSchedule
from pcp.runtime.memory.buffer_pool import overlap, spans
from pcp.runtime.transport import mover
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.frame import Frame, PartialFrame, data_prefix
from pcp.runtime.transport.incoming import Flow
from pcp.runtime.transport.link import Link
from pcp.runtime.transport.outgoing import OutgoingFrame
from pcp.runtime.transport.tcp import TcpLink

SEGMENT_BYTES = 256 << 10
"""Bytes of a frame at most: they are added and sent on while the cache has them."""
MOST_JOBS = 8
"""Reductions that the loop has at once, at most."""
_WATCHFUL_MICROSECONDS = 100
_BUDGET = 16 << 20
"""Bytes moved before the thread looks at other things."""
_PROCESSORS = os.cpu_count() or 1
_FOREIGN = 2
_VOTE = -2
"""In place of a move: the frame of this member's vote."""


class CompiledReduction(Protocol):
    """The part of a reduction that the compiled loop uses."""

    tag: int
    seq: int

    @property
    def opened_peers(self) -> Iterable[int]:
        """The peers that have opened: data may go to them."""
        ...

    @property
    def overwritten(self) -> list[tuple[int, int]]:
        """The memory of the caller in which the loop makes the result (`spans`)."""
        ...

    def came(self, elements: int, first: float) -> None:
        """Note elements that have come, the first of all at this time."""
        ...

    def peer_opened(self, peer: int, when: float) -> None:
        """Note that a peer has opened, with the same frame as this member."""
        ...

    def has_voted(self, when: float) -> None:
        """Note that the vote of this member is on its way."""
        ...

    def peer_voted(self, peer: int) -> None:
        """Note a peer's vote."""
        ...

    def say_vote(self, peer: int) -> None:
        """Send this member's vote to a peer."""
        ...

    def vote_frame(self) -> Frame:
        """The frame of this member's vote."""
        ...

    def resumed(self, peer: int, unread: PartialFrame) -> Flow:
        """The receiver of the rest of a frame that is partly received."""
        ...

    def unsent(self, index: int, start: int, nbytes: int) -> Frame:
        """The frame of a move that is partly sent."""
        ...

    def made(self) -> None:
        """Note that all moves are done, and all votes are here."""
        ...

    def returned(self, *, over: bool) -> None:
        """Go on in Python; or come to the end, if it was `made`."""
        ...


def lendable(links: Mapping[int, Link | None]) -> dict[int, TcpLink] | None:
    """These links by rank, if a compiled loop may have the sockets of all."""
    found = dict[int, TcpLink]()
    for peer, link in sorted(links.items()):
        if not isinstance(link, TcpLink) or not link.lendable:
            return None
        found[peer] = link
    return found


def plan_fits(plan: MemberSchedule) -> bool:
    """Whether all that comes can be added, or taken over, the moment it comes."""
    return not any(move.reduce and move.after for move in plan.moves if not move.sends)


def first_writes(
    plan: MemberSchedule, ranges: Sequence[tuple[int, int]]
) -> list[bool] | None:
    """Which moves are the first to write their elements; None if some are in part."""
    saves, written = list[bool](), list[tuple[int, int]]()
    for move, (start, stop) in zip(plan.moves, ranges, strict=True):
        if move.sends:
            saves.append(False)
            continue
        met = [one for one in written if one[0] < stop and start < one[1]]
        if any(a > start or b < stop for a, b in met):
            return None
        saves.append(not met)
        if saves[-1]:
            written.append((start, stop))
    return saves


class MoveMemory(NamedTuple):
    """The memory of a reduction's moves, and what is done in it."""

    values: memoryview
    out: memoryview
    """The bytes of the own operand, and of the result."""
    at: "array[int]"
    here: "array[int]"
    stops: Sequence[int]
    """Elements of each move: done, received, and up to where it goes."""
    addition: tuple[int, bool, int]
    """Its letter, whether what comes is the left operand, and the divisor or 0."""
    step: int
    """Elements of a frame."""
    saves: Sequence[bool] | None
    """Which moves are the first to write where they do, for a result that is made in
    place of the operand, whose old values `out` keeps; None for one made in `out`."""


class VotingFrames(NamedTuple):
    """The frames with which each member opens an operation, and votes for it."""

    open: bytes
    vote: bytes


class _Job:
    """A reduction in the loop, and the peers whose news it was told, as bits."""

    def __init__(self, of: CompiledReduction) -> None:
        self.of = of
        self.opened = self.heard = 0
        self.voted = False


class CompiledLoop:
    """The compiled loop of a communication thread over links to some peers."""

    def __init__(self, loop: Loop, links: dict[int, TcpLink]) -> None:
        assert mover.compiled is not None, "the links have compiled loops"
        self.links = links
        self._loop = loop
        self._peers = list(links)
        self._moves = mover.compiled.Moves(len(links))
        self._jobs: dict[int, _Job] = {}
        """By the number that the compiled loop gave them."""
        self._counts = [(0, 0)] * len(links)
        self._watch = _WATCHFUL_MICROSECONDS

    @property
    def running(self) -> bool:
        """Whether it has the sockets."""
        return self._loop.driver == self.drive

    def takes(self, peers: Iterable[int]) -> bool:
        """Whether it has room for one more reduction, among these peers."""
        return len(self._jobs) < MOST_JOBS and self.links.keys() >= set(peers)

    def add(
        self,
        of: CompiledReduction,
        plan: MemberSchedule,
        work: MoveMemory,
        voting: VotingFrames | None,
    ) -> None:
        """Take a reduction in; with `voting` its peers have to be those of the loop."""
        table, before = array("q"), array("q")
        for index, (move, stop) in enumerate(zip(plan.moves, work.stops, strict=True)):
            where = self._peers.index(move.peer), move.round, work.at[index], stop
            saves = work.saves is not None and work.saves[index]
            how = move.sends, move.reduce, move.ends, saves
            table.extend((*where, *how, len(before), len(move.after)))
            before.extend(move.after)
        one = next(iter(self.links.values()))
        prefix = data_prefix(one.epoch, of.tag, of.seq, unchecked=one.unchecked)
        frames = prefix, *((voting.vote, voting.open) if voting else (b"", b""))
        facts = *work.addition, work.step, work.saves is not None
        number = self._moves.add(
            frames, facts, work.values, work.out, work.at, work.here, table, before
        )
        self._jobs[number] = _Job(of)
        for peer in of.opened_peers:
            self.note(of, peer)
        if not self.running:
            crowded = plan.members > _PROCESSORS
            self._watch = 0 if crowded else _WATCHFUL_MICROSECONDS
            for link in self.links.values():
                link.borrower = self
            self._loop.driver = self.drive

    def note(self, of: CompiledReduction, peer: int, *, voted: bool = False) -> None:
        """Note a peer's OPEN frame, or its vote, that came another way."""
        for number, job in self._jobs.items():
            if job.of is of and peer in self.links:
                index = self._peers.index(peer)
                job.opened |= 0 if voted else 1 << index
                job.heard |= 1 << index if voted else 0
                self._moves.note(number, index, voted)

    def spare(self, given: NDArray | Sequence[NDArray] | None) -> None:
        """Give the moves back if a result is being made in these arrays.

        They are as they were then, for another operation.
        """
        if not self.running or given is None:
            return
        memory = spans(given)
        if any(overlap(job.of.overwritten, memory) for job in self._jobs.values()):
            self.give_back()

    def drive(self, others: int, pause: float) -> bool:
        """Move data until the descriptor `others` is readable, or `pause` is over.

        Whether it may be readable.
        """
        ends = tuple(link.ends() for link in self.links.values())
        milliseconds = min(1000, int(1e3 * pause + 0.999))
        limits = milliseconds, self._watch, _BUDGET
        why, which, readable = self._moves.run(ends, others, *limits)
        self._count()
        over = [number for number in list(self._jobs) if self._tell(number)]
        # When all has been told: what follows may give the moves back.
        done = [self._jobs.pop(number) for number in over]
        for number in over:
            self._moves.drop(number)
        for job in done:  # before a caller is told of one, who may end the others
            job.of.made()
        if done and not self._jobs:
            self.give_back()
        for job in done:
            job.of.returned(over=True)
        if self.running and why == _FOREIGN:
            self.links[self._peers[which]].take(self._moves.head(which))
        elif self.running and why > _FOREIGN:  # the link meets the fault again
            self.give_back()
        if self.running:
            for link in self.links.values():
                link.resume()
        return bool(readable)

    def _count(self) -> None:
        for index, link in enumerate(self.links.values()):
            old, new = self._counts[index], self._moves.counts(index)
            if old != new:
                self._counts[index] = new
                link.moved(new[0] - old[0], new[1] - old[1])

    def _tell(self, number: int) -> bool:
        """Tell a reduction what the loop has done for it; whether it is over."""
        if (job := self._jobs.get(number)) is None:
            return False
        over, came, first, opened, times, voted, heard, _ = self._moves.state(number)
        if came:
            job.of.came(came, 1e-6 * first)
        for index, peer in enumerate(self._peers):
            if opened & ~job.opened & 1 << index:
                job.opened |= 1 << index
                job.of.peer_opened(peer, 1e-6 * times[index])
        if voted and not job.voted:
            job.voted = True
            job.of.has_voted(1e-6 * voted)
        for index, peer in enumerate(self._peers):
            if heard & ~job.heard & 1 << index:
                job.heard |= 1 << index
                job.of.peer_voted(peer)
        return bool(over)

    # For links (`link.Borrower`).

    def midway(self, link: TcpLink) -> bool:
        """Whether a frame is partly sent on this link."""
        index = list(self.links.values()).index(link)
        return self._moves.unsent(index) is not None

    def give_back(self, without: CompiledReduction | None = None) -> None:
        """Return the sockets, with the frames that are under way.

        The reductions go on in Python, but the one that is `without`.
        """
        if not self.running:
            return
        self._loop.driver = None
        jobs, self._jobs = self._jobs, {}
        unread = [self._moves.unread(index) for index in range(len(self._peers))]
        unsent = [self._moves.unsent(index) for index in range(len(self._peers))]
        heads = [self._moves.head(index) for index in range(len(self._peers))]
        silent: list[tuple[CompiledReduction, int]] = []
        for number, job in jobs.items():
            *_, said = self._moves.state(number)
            for index, peer in enumerate(self._peers):
                left = unsent[index]
                midway = left is not None and left[:2] == (number, _VOTE)
                if job.voted and not midway and not said & 1 << index:
                    silent.append((job.of, peer))
            self._moves.drop(number)
        for index, (peer, link) in enumerate(self.links.items()):
            head, flow, out = heads[index], None, None
            if (left := unsent[index]) is not None:
                out = _resumed(jobs[left[0]].of, link, *left[1:])
            partial = None
            if (came := unread[index]) is not None:
                partial = PartialFrame(*came[1])
                head, flow = b"", jobs[came[0]].of.resumed(peer, partial)
            link.take_back(head, partial, flow, out)
        for reduction, peer in silent:
            reduction.say_vote(peer)
        for job in jobs.values():
            if job.of is not without:
                job.of.returned(over=False)


def _resumed(
    of: CompiledReduction,
    link: TcpLink,
    move: int,
    start: int,
    nbytes: int,
    sent: int,
    hashed: int,
    total: object,
) -> OutgoingFrame:
    """A frame that the compiled loop has sent in part."""
    if move == _VOTE:
        out = OutgoingFrame(of.vote_frame(), link.epoch)
        out.pack()
        out.advance(sent)
        return out
    frame = of.unsent(move, start, nbytes)
    state = sent, hashed, total
    return OutgoingFrame.resumed(frame, link.epoch, link.unchecked, *state)
