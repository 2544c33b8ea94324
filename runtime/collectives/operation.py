"""One collective operation of one member, from its OPEN frames to its end.

An operation's life, driven by frames in the loop's thread:

    posted ──OPEN to all peers──► opened ───data──► local part done
                                                        │ DONE to all peers
         PeerLost / CollectiveAborted / Timeout ◄─┐     ▼
              ABORT to all peers  ◄── a fault ────┴── waiting for votes
                                                        │ DONE of all survivors
                                                        ▼
                                             committed: the caller's array changes

* The OPEN frame carries a descriptor (kind, reduction, type, shape). Members
  compare descriptors before any bulk data is looked at; a difference aborts on all.
* Bulk data goes to a peer after that peer opened, into memory it has set aside:
  data in flight is bounded by the operations' own buffers. Some data goes to a far
  peer before that; the peer keeps it until it opens too (`unexpected_frames`).
* Among many members OPEN and DONE go along a tree instead (`agreement`).
* The caller's array has the result behind the commit, and is as it was if there is
  none: only a compiled loop writes it before, and puts back what was there. A member
  votes once. When one dies, the others commit if all of them had voted, and give
  up, inputs unchanged, if one had not.
* A member that leaves the group votes against the operations it has not voted for, and
  sends those votes: only dead members have no vote.
* A vote cannot settle the case of a member that gives up *after* its vote (its deadline
  passes, its program aborts the group), or that finds itself alone: it may be the only
  one. In an elastic group it asks the coordinator, which decides once for all
  (`membership`). In a fixed world the group must be formed anew, and shared state
  compared, which `param_sync` does.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from pcp.errors import (
    CollectiveAborted,
    PcpError,
    PeerLost,
    ProtocolError,
    RuntimeFault,
    Timeout,
)
from pcp.runtime.collectives.agreement import Agreement, Said, many
from pcp.runtime.collectives.descriptor import (
    disagreement,
    open_payload,
    read,
    split_open_payload,
    written,
)
from pcp.runtime.collectives.local_part import LocalPart
from pcp.runtime.collectives.members import Members
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.collectives.segments.held_frames import HeldFrames
from pcp.runtime.collectives.timing import Timing
from pcp.runtime.transport.event_loop import Timer
from pcp.runtime.transport.frame import Frame, Header, Kind, text_payload

_SLOW_BYTES = 64 << 10
"""A pass over so many bytes takes longer than waking a peer."""
_CALL_OUT, _CALL_OUT_SECONDS = 0.75, 5.0
"""The part of its time, but no longer, after which it asks who is missing."""


class Operation(LocalPart):
    """Base of all operations; subclasses move the data.

    `peers` are the other participants. `descriptor` must be equal on all of
    them, except for the keys in `free`.
    """

    def __init__(
        self, peers: Iterable[int], descriptor: dict[str, Any], timeout: float
    ) -> None:
        self.peers = sorted(peers)
        self.descriptor = descriptor
        self.pending = Pending()
        self.timing = Timing()
        self.label = ""
        """The caller's tag, for messages."""
        self.given: Any = None
        """The array, or arrays, of the caller that it works in."""
        self.error: PcpError | None = None
        self.deadline = time.monotonic() + timeout
        self.tag = self.seq = 0
        self.opened: dict[int, dict[str, Any]] = {}
        self.over = False
        self.at_end: list[Callable[[], None]] = []
        """Functions that the loop calls after the operation's future is done."""
        self.committed = False
        self.promised = False
        """Whether the arbiter knows this member's vote: it may decide by that now."""
        self._doubt: PcpError | None = None
        self._timeout = timeout
        self._group: Members | None = None
        self._timer: Timer | None = None
        self._to_call_out: Timer | None = None
        self._said = b""
        """This member's descriptor, as JSON bytes."""
        self._held: HeldFrames | None = None
        self._unsent = 0
        self._voted = self._announced = self._called_out = False
        self._waits_below = False
        """Whether a compiled loop votes, and says when all is over."""

    # The life of an operation, called by the group.

    @property
    def voted(self) -> bool:
        """Whether this member has voted for the operation, or has committed it."""
        return self._voted and self.votes

    @property
    def group(self) -> Members:
        """The group of the operation."""
        assert self._group is not None, "an operation is posted before it runs"
        return self._group

    def start(self, group: Members) -> None:
        """Announce the operation to the peers."""
        self._group = group
        partners = self.partners if many(self.peers) else None
        self.agreement = Agreement(group.rank, self.peers, partners)
        delay = max(0.0, self.deadline - time.monotonic())
        self._timer = group.later(delay, self._expired)
        if self.agreement.near is not self.agreement.peers:
            pause = min(_CALL_OUT * delay, _CALL_OUT_SECONDS)
            self._to_call_out = group.later(pause, self._call_out)
        self.prepare()
        self._said = written(self.descriptor)
        self._unsent += 1  # data sent at once must not look like all of the data
        self.announce()

    def announce(self) -> None:
        """Send the OPEN frames, and begin."""
        self._announced = True
        near, send = self.agreement.near, self.group.send
        for peer in self.peers if self._called_out else self._in_order(near):
            send(peer, self._frame(Kind.OPEN, self._open_payload(peer)))
        self.begin()
        self._was_sent()

    def on_open(self, peer: int, payload: memoryview) -> None:
        """Handle the OPEN frame of a peer."""
        if self.over:
            return
        said, eager = split_open_payload(payload)
        # As a rule it equals this member's, byte by byte.
        theirs = self.descriptor if said == self._said else read(said)
        self._opened_by(peer, theirs, eager)

    def _opened_by(
        self, peer: int, theirs: dict[str, Any], eager: memoryview, when: float = 0.0
    ) -> None:
        """Take a peer's descriptor and eager payload, which came now or at a time."""
        if self.over:
            return
        if peer in self.opened or peer not in self.peers:
            raise ProtocolError(f"rank {peer} opened {self.name} out of turn")
        mine = self.group.rank, self.descriptor
        if error := disagreement(mine, (peer, theirs), self.free):
            self.give_up(error)
            return
        self.opened[peer] = theirs
        if peer not in self.agreement.near:
            self._call_out()
            return
        held = self._held
        if held is not None:
            held.caught_up(self.group, peer)
        eager_bytes = len(eager) if self.eager_data else 0
        self.timing.join(peer, eager_bytes, last=self.all_here, now=when)
        self.accept(peer, eager)
        for frame in held.take(peer) if held is not None else ():
            self.group.send(peer, frame)
        self._progress()

    def on_data(self, peer: int, header: Header, payload: memoryview) -> None:
        """Handle a DATA frame of a peer."""
        if self.over:
            return
        self._unsent += 1
        self.timing.receive(header.length)
        self.arrived(peer, header, payload)
        self._was_sent()

    def on_done(self, peer: int, step: int) -> None:
        """Handle a peer's frame about votes for the operation."""
        if said := self.agreement.hear(peer, step):
            self._say(said)
        self._progress()

    def on_abort(self, peer: int, lost: int | None, reason: str) -> None:
        """Give the operation up, since `peer` did before its vote.

        The ABORT goes on to the other peers: to some of them `peer` may be lost before
        they read its frame. A member that promised its vote learns from the arbiter
        that the operation is given up: if `peer` is dead by now, the decision may have
        been made without it.
        """
        self._tell_abort(reason, lost, peer)
        error: RuntimeFault = CollectiveAborted(f"rank {peer} gave up: {reason}")
        if lost is not None:
            error = PeerLost(reason, peer=lost)
        if not (self.promised and self._undecided(error)):
            self.end(error)

    def on_lost(
        self,
        peer: int,
        error: RuntimeFault,
        *,
        left: bool = False,
        called: bool = True,
    ) -> None:
        """Handle a loss, or a goodbye: finish without the member, or give up.

        Of a member that `left` it matters whether it had `called` the operation: if
        not, it has happened nowhere.
        """
        self._say(self.agreement.lose(peer, left=left))
        if self._voted and called:
            self._progress()
        else:
            self.give_up(error)

    def give_up(self, error: RuntimeFault) -> None:
        """Vote against the operation, which then happens on no member.

        After a vote in favour the coordinator decides instead.
        """
        if self.over or self._undecided(error):
            return
        lost = error.peer if isinstance(error, PeerLost) else None
        self._tell_abort(str(error), lost, self.group.rank)
        self.end(error)

    def _tell_abort(self, reason: str, lost: int | None, who: int) -> None:
        payload = text_payload(reason)
        step = 0 if lost is None else lost + 1
        for peer in self.peers:
            if peer != who and peer not in self.agreement.gone:
                self.group.send(peer, self._frame(Kind.ABORT, payload, step, who))

    def end(self, error: PcpError | None = None, value: Any = None) -> None:
        """Free the buffers and tell the caller."""
        if self.over:
            return
        self.over = True
        self.error = error
        if self._held is not None:
            self._held.drop(self._group)
        if self._timer is not None:
            self._timer.cancel()
        if self._to_call_out is not None:
            self._to_call_out.cancel()
        if self._group is not None:
            for peer in self.peers if error is not None else ():
                self._group.recall(peer, self.tag, self.seq)
            self._group.retire(self)
            for what in self.at_end:
                self._group.later(0.0, what)
            self.at_end.clear()
        self.release()
        if error is not None:
            self.pending.set_exception(error)
        else:
            self.pending.set_result(value)

    def promise(self) -> bool:
        """Whether this member voted for it; then only a decision ends the operation."""
        self.promised = self.voted
        return self.promised

    def decided(self, commit: bool) -> None:
        """Carry out the coordinator's decision about an operation with our vote."""
        if self.over:
            return
        if commit:
            self._commit()
        else:
            self.end(self._doubt or CollectiveAborted(f"{self.name} was given up"))

    def broken(self, error: PcpError) -> None:
        """End with the group, unless the operation may have happened."""
        if not self.over and not self._undecided(error):
            self.end(self._in_doubt(error))

    def left(self, error: PcpError) -> None:
        """Vote against as this member leaves the group, if it has not voted.

        Without that vote the other members would go on as if it had died.
        """
        if not self.over and not self.voted:
            me = self.group.rank
            self._tell_abort(f"rank {me} left the group", me, me)
        self.broken(error)

    def _in_doubt(self, error: PcpError) -> PcpError:
        """The error for the caller; after our vote, that the outcome is unknown."""
        if not self.voted or not isinstance(error, CollectiveAborted):
            return error
        what = f"{self.title} may have happened on the others"
        return CollectiveAborted(f"{error}; this member had voted, {what}")

    def _undecided(self, error: PcpError) -> bool:
        """Whether it waits for a decision, or has one; `error` is the reason to ask."""
        if not self.voted:
            return False
        if self.agreement.settled:  # all have voted, and a compiled loop has yet to say
            self.decided(True)
            return True
        waits = self._doubt is not None
        self._doubt = self._doubt or error
        self.promised = waits or self.group.arbitrate(self)
        return self.promised

    # For subclasses to use.

    def send_data(
        self,
        peer: int,
        step: int,
        offset: int,
        payload: memoryview,
        taken: Callable[[], None] | None = None,
    ) -> None:
        """Send a segment: at once to a peer that has opened or is far, else later.

        `taken` is called when its memory is free again, unless the operation is over.
        """
        self._unsent += 1
        self.timing.sent += len(payload)

        def was_sent() -> None:
            if taken is not None and not self.over:
                taken()
            self._was_sent()

        frame = self._frame(Kind.DATA, payload, step, offset, was_sent)
        if peer in self.opened:
            self.group.send(peer, frame)
            return
        held = self._held = self._held or HeldFrames()
        # Without a vote the peer would keep data that its sender may still give up.
        if self.votes and held.goes_ahead(self.group, peer, len(payload)):
            self.group.send(peer, frame)
        else:
            held.hold(peer, frame)

    def _was_sent(self) -> None:
        self._unsent -= 1
        self._progress()

    def _frame(
        self,
        kind: Kind,
        payload: memoryview | bytes,
        step: int = 0,
        offset: int = 0,
        on_sent: Callable[[], None] | None = None,
    ) -> Frame:
        # Peers must not wait for a large copy of this member in the same turn.
        urgent = self.bulk >= _SLOW_BYTES
        place = (self.tag, self.seq, step, offset)
        return Frame(kind, *place, payload, on_sent, urgent=urgent)

    def _open_payload(self, peer: int) -> bytes:
        eager = self.eager(peer)
        self.timing.sent += len(eager) if self.eager_data else 0
        return open_payload(self._said, eager)

    def _progress(self) -> None:
        """Vote when the local part is done; commit when all votes are in."""
        if self.over or self._waits_below:
            return
        if not self._voted:
            opened = self.buffered or self.all_here
            if not opened or self._unsent or not self.complete():
                return
            self._voted = True
            self.timing.voted = time.monotonic()
            if self.votes:
                self._say(self.agreement.vote())
        if not self.votes or self.agreement.settled:
            self._commit()
        elif self.agreement.gone and self.agreement.exhausted:
            lost = min(self.agreement.gone)
            told = PeerLost(f"{self.name}: rank {lost} is lost", peer=lost)
            if not self._undecided(told):
                self._commit()

    def _say(self, said: Said) -> None:
        send = self.group.send
        for peer, step in said:
            send(peer, self._frame(Kind.DONE, b"", step))

    def _call_out(self) -> None:
        """Tell all members of the operation, so that each knows who is missing."""
        if self.over or self._called_out:
            return
        self._called_out = True
        for peer in sorted(self.agreement.peers - self.agreement.near):
            if self._announced:
                payload = self._open_payload(peer)
                self.group.send(peer, self._frame(Kind.OPEN, payload))

    def _commit(self) -> None:
        self.committed = True
        try:
            value = self.commit()
        except Exception as error:
            self.end(RuntimeFault(f"{self.name} could not write its result: {error}"))
        else:
            self.end(value=value)

    @property
    def title(self) -> str:
        """The operation's name, and the caller's tag if there is one."""
        return f"{self.name} {self.label!r}" if self.label else self.name

    def _in_order(self, near: frozenset[int]) -> Iterable[int]:
        return self.peers if near is self.agreement.peers else sorted(near)

    @property
    def all_here(self) -> bool:
        """Whether all members that this one waits for have opened."""
        near, opened = self.agreement.near, self.opened
        if len(opened) < len(near):
            return False
        return near is self.agreement.peers or opened.keys() >= near

    @property
    def obstacle(self) -> str:
        """The reason why the operation is not over."""
        if missing := self.missing:
            return f"rank {', '.join(map(str, missing))} never joined it"
        return "it did not finish"

    @property
    def missing(self) -> list[int]:
        """The ranks that have not called it, as far as this member has to know."""
        near = self.agreement.near
        known = self.peers if self._called_out else self._in_order(near)
        return [peer for peer in known if peer not in self.opened]

    def _expired(self) -> None:
        told = f"{self.name} gave up after {self._timeout:g} s: {self.obstacle}"
        self.give_up(Timeout(told, peers=self.missing))
