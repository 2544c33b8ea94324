"""The operations of one member that are under way, and the frames for them.

A frame goes to its operation. A frame that comes before the operation is called here
waits (`unexpected_frames`); a frame that comes when the operation is over is dropped,
and a member that asks for the outcome gets an answer (`outcomes`).
"""

import hashlib
import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from pcp.errors import PcpError, RuntimeFault, UsageError
from pcp.runtime.collectives.agreement import ASK, VERDICT, many
from pcp.runtime.collectives.descriptor import abort_reason
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.group.outcomes import Key, Outcomes, again, given_up
from pcp.runtime.group.unexpected_frames import (
    MAX_IN_FLIGHT,
    UnexpectedFrame,
    UnexpectedFrames,
)
from pcp.runtime.transport.frame import Frame, Header, Kind, text_payload
from pcp.runtime.transport.incoming import Flow

_REMEMBERED = 32


@dataclass(frozen=True)
class AwaitedRanks:
    """The ranks that a member waits for in a call; none, if all have joined it."""

    ranks: tuple[int, ...]
    seconds: float
    """How long the member has waited."""

    @classmethod
    def by(cls, operations: Sequence[Operation]) -> Self | None:
        """The ranks that the first operation with missing ones waits for, or None."""
        for operation in operations:
            if missing := operation.missing:
                since = operation.timing.posted
                return cls(tuple(missing), time.monotonic() - since)
        return cls((), 0.0) if operations else None


class OperationGroup(Protocol):
    """The group that the operations are of."""

    rank: int
    fault: RuntimeFault | None

    def send(self, peer: int, frame: Frame) -> None:
        """Queue a frame to a member."""
        ...


class OperationTable:
    """See the module. All methods but `number` run in the loop's thread."""

    def __init__(self, group: OperationGroup) -> None:
        self._group = group
        self.operations: dict[Key, Operation] = {}
        """The operations that were posted and are not over, in that order."""
        self.outcomes = Outcomes()
        self.unexpected = UnexpectedFrames()
        self.doubtful: dict[Key, Operation] = {}
        """The operations that wait for a decision of the arbiter."""
        self.failures: deque[tuple[str, PcpError]] = deque(maxlen=_REMEMBERED)
        """The last operations that failed: their titles, and why."""
        self._early: set[int] = set()
        """Peers whose data arrives in memory of no operation."""
        self._drains: dict[int, memoryview] = {}
        self._turns: dict[int, itertools.count[int]] = {}
        """The numbers of each tag's operations."""

    # Beginning and end of operations.

    def number(self, operation: Operation, tag: str, turn: int | None) -> None:
        """Number an operation: `turn` of its tag, or the next one.

        From any thread, one call at a time.
        """
        operation.tag, operation.label = _hashed(tag), tag
        turns = self._turns.setdefault(operation.tag, itertools.count())
        operation.seq = next(turns) if turn is None else turn

    def add(self, operation: Operation) -> list[UnexpectedFrame] | None:
        """Take an operation in: the frames that wait for it; None if it is refused."""
        key = (operation.tag, operation.seq)
        unexpected = self.unexpected.take(key)
        self.outcomes.post(key)
        error: PcpError | None = None
        if self._group.fault is not None or self.outcomes.refused(key):
            error = again(self._group.fault or given_up())
        elif len(self.operations) >= MAX_IN_FLIGHT:
            told = f"more than {MAX_IN_FLIGHT} operations under way; wait"
            error = UsageError(told)
        if error is not None:
            self.outcomes.refuse(key)
            self._refuse(operation, error)
            return None
        self.operations[key] = operation
        return unexpected

    def remove(self, operation: Operation) -> bool:
        """Forget an operation that is over; whether it was taken in."""
        key = (operation.tag, operation.seq)
        self.doubtful.pop(key, None)
        if operation.error is not None:
            self._remember(operation)
        if not operation.committed:
            self.outcomes.refuse(key)
        return self.operations.pop(key, None) is not None

    def doubt(self, operation: Operation) -> Key:
        """The key of an operation that the arbiter is to decide about."""
        key = (operation.tag, operation.seq)
        self.doubtful[key] = operation
        return key

    def concede(self, key: Key) -> bool:
        """Whether this member voted for an operation; if not, it never will."""
        operation = self.operations.get(key)
        if operation is not None:
            if not operation.promise():
                operation.give_up(again(self._group.fault or given_up()))
            return operation.voted
        if not (happened := self.outcomes.happened(key)):
            self.outcomes.refuse(key)
        return happened

    def _refuse(self, operation: Operation, error: PcpError) -> None:
        # Among few members none votes before this one has opened the operation.
        for peer in operation.peers if many(operation.peers) else ():
            self._vote_against(peer, (operation.tag, operation.seq))
        operation.end(error)
        self._remember(operation)

    def _remember(self, operation: Operation) -> None:
        if operation.error is not None:
            self.failures.append((operation.title, again(operation.error)))

    # Frames of operations.

    def room(self, rank: int, header: Header) -> memoryview:
        """Memory for data: an operation's own, if it is under way."""
        key = (header.tag, header.seq)
        operation = self.operations.get(key)
        if operation is not None:
            return operation.place(rank, header)
        if self.outcomes.stale(key) or self._group.fault is not None:
            return self._waste(rank, header.length)
        self._early.add(rank)
        return self.unexpected.room(key, rank, header.length)

    def flow(self, rank: int, header: Header) -> Flow | None:
        """The receiver of an operation's data that it works on as it comes."""
        operation = self.operations.get((header.tag, header.seq))
        return None if operation is None else operation.flow(rank, header)

    def data(self, rank: int, header: Header, payload: memoryview) -> None:
        """Handle data that is in the memory from `room`, or went into its flow."""
        early = rank in self._early
        self._early.discard(rank)
        self.dispatch(rank, header, payload, early=early)

    def dispatch(
        self, rank: int, header: Header, payload: memoryview, *, early: bool = False
    ) -> None:
        """Handle an operation's frame; `early`: the payload is in no memory of it."""
        key = (header.tag, header.seq)
        operation = self.operations.get(key)
        if operation is None:
            asked = header.kind is Kind.DONE and header.step == ASK
            stale = self.outcomes.stale(key)
            if asked and (stale or self._group.fault is not None):
                self._answer(rank, key)
            elif stale:
                # Frames of an operation that was skipped here may be kept all the same.
                if header.kind is Kind.ABORT:
                    self.unexpected.drop_data(key, rank)
            elif self._group.fault is None:
                self.unexpected.keep(key, rank, header, payload)
            return
        match header.kind:
            case Kind.OPEN:
                operation.on_open(rank, payload)
            case Kind.DATA:
                if early:
                    room = operation.place(rank, header)
                    room[:] = payload
                    payload = room
                operation.on_data(rank, header, payload)
            case Kind.DONE:
                operation.on_done(rank, header.step)
            case Kind.ABORT:
                operation.on_abort(*abort_reason(header, payload))

    def _answer(self, rank: int, key: Key) -> None:
        """Tell a member that asks the outcome of an operation that is over here."""
        if self.concede(key):
            self._group.send(rank, Frame(Kind.DONE, *key, VERDICT))
        else:
            self._vote_against(rank, key)

    def _vote_against(self, rank: int, key: Key) -> None:
        told = text_payload(f"rank {self._group.rank} never voted for it")
        self._group.send(rank, Frame(Kind.ABORT, *key, 0, self._group.rank, told))

    def _waste(self, rank: int, length: int) -> memoryview:
        """Memory for bytes of an operation that was given up.

        One for each peer, since checksums are still verified.
        """
        drain = self._drains.get(rank, memoryview(b""))
        if len(drain) < length:
            drain = self._drains[rank] = memoryview(bytearray(length))
        return drain[:length]


def _hashed(tag: str) -> int:
    if tag == "":
        return 0
    if not isinstance(tag, str):
        raise UsageError(f"the tag of a collective is a text, not {tag!r}")
    digest = hashlib.blake2b(tag.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") | 1
