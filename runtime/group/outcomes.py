"""The outcomes of a group's operations on this member, for members that ask.

The coordinator asks members when an operation is in doubt, and members ask each other
when one of them died that would have passed votes on (`agreement`). An answer is final:
a member that answers that it has not voted for an operation never will.
"""

import struct
from collections import deque
from typing import TypeVar

from pcp.errors import (
    CollectiveAborted,
    PcpError,
    PeerLost,
    ProtocolError,
    RuntimeFault,
)
from pcp.runtime.group.unexpected_frames import MAX_IN_FLIGHT, Key

Fault = TypeVar("Fault", bound=PcpError)
_CALLED = struct.Struct(">QI")
MOST_TAGS = 4096
CALLED_BYTES = MOST_TAGS * _CALLED.size
"""The most bytes of a BYE's payload."""


def called_by(said: memoryview) -> dict[int, int]:
    """The numbers by tag in a BYE's payload, or ProtocolError."""
    if len(said) % _CALLED.size:
        raise ProtocolError("a goodbye with half a tag")
    return dict(_CALLED.iter_unpack(said))


class Outcomes:
    """The operations that were posted here, and those of them that did not happen."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        """By tag, the seq behind the last operation that was posted; newest last."""
        self._against: set[Key] = set()
        self._skipped: dict[int, deque[tuple[int, int]]] = {}
        """By tag, the last ranges of numbers that were never posted."""

    def post(self, key: Key) -> None:
        """An operation is posted: of its tag, those before it are over or skipped."""
        tag, seq = key
        if seq > (due := self._next.pop(tag, 0)):
            ranges = self._skipped.setdefault(tag, deque(maxlen=MAX_IN_FLIGHT))
            ranges.append((due, seq))
        self._next[tag] = seq + 1

    def stale(self, key: Key) -> bool:
        """Whether the operation was posted here, or skipped."""
        return key[1] < self._next.get(key[0], 0)

    def refuse(self, key: Key) -> None:
        """The operation has not happened here, and never will."""
        self._against.add(key)

    def refused(self, key: Key) -> bool:
        """Whether it is certain that the operation never happens here."""
        return key in self._against

    def called(self) -> bytes:
        """The payload of a BYE: the tags that were used last, and their numbers."""
        last = list(self._next.items())[-MOST_TAGS:]
        return b"".join(_CALLED.pack(tag, due) for tag, due in last)

    def happened(self, key: Key) -> bool:
        """Whether an operation that is not under way has happened, or never will.

        The caller makes sure that an operation which was not posted never is.
        """
        skipped = self._skipped.get(key[0], ())
        return (
            self.stale(key)
            and key not in self._against
            and not any(first <= key[1] < stop for first, stop in skipped)
        )


def given_up() -> RuntimeFault:
    """The fault of an operation that did not happen."""
    return CollectiveAborted("the other members gave this operation up")


def again(fault: Fault, message: str | None = None) -> Fault:
    """A fresh exception of the same meaning, for another caller to raise."""
    message = message or str(fault)
    if isinstance(fault, PeerLost):
        return type(fault)(message, peer=fault.peer)
    return type(fault)(message)
