"""Unexpected frames: those that came before their operation was called here.

A peer may be ahead by as many operations as may be under way, by the bytes of their
OPEN frames, and by `AHEAD_BYTES` of data behind these; more is a ProtocolError. Each
peer has its own bounds, so that one cannot use up the room of another.
"""

from collections import Counter

from pcp.errors import ProtocolError
from pcp.runtime.collectives.agreement import ASK
from pcp.runtime.transport.frame import Header, Kind
from pcp.wire import EAGER_BYTES

MAX_IN_FLIGHT = 1024
"""Operations a member may have under way; bounds the unexpected frames."""
MAX_FRAMES = 4 * MAX_IN_FLIGHT
MAX_BYTES = 2 * MAX_IN_FLIGHT * EAGER_BYTES
AHEAD_BYTES = 16 << 20
"""Bulk data: half a round trip of 100 ms at 2.5 Gbit/s."""
_LEAST = AHEAD_BYTES // (MAX_FRAMES - 2 * MAX_IN_FLIGHT)

Key = tuple[int, int]
"""An operation: tag and seq."""
UnexpectedFrame = tuple[int, Header, memoryview]


def charge(nbytes: int) -> int:
    """The part of `AHEAD_BYTES` that a DATA frame takes; small ones have a minimum.

    So a sender that keeps to these bytes never has more than `MAX_FRAMES` kept.
    """
    return max(nbytes, _LEAST)


class UnexpectedFrames:
    """The unexpected frames of a group, by operation."""

    def __init__(self) -> None:
        self._frames: dict[Key, list[UnexpectedFrame]] = {}
        self._said: set[tuple[Key, int, Kind]] = set()
        """Operations that a peer opened or gave up: key, rank, kind of frame."""
        self._count: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self._data: Counter[int] = Counter()

    def room(self, key: Key, rank: int, length: int) -> memoryview:
        """Memory for data that goes to `keep` next; ProtocolError as there."""
        self._check_data(key, rank, length)
        return memoryview(bytearray(length))

    def keep(self, key: Key, rank: int, header: Header, payload: memoryview) -> None:
        """Keep a frame; ProtocolError when this rank must not send it."""
        if header.kind is Kind.DATA:
            self._check_data(key, rank, header.length)
        else:
            self._check_word(key, rank, header)
            self._said.add((key, rank, header.kind))
        if header.kind is Kind.ABORT:
            self.drop_data(key, rank)
        if self._count[rank] >= MAX_FRAMES:
            raise ProtocolError(f"rank {rank} is too far ahead")
        self._frames.setdefault(key, []).append((rank, header, payload))
        self._book(rank, header, 1)

    def take(self, key: Key) -> list[UnexpectedFrame]:
        """Remove and return the frames of an operation."""
        frames = self._frames.pop(key, [])
        for rank, header, _ in frames:
            self._book(rank, header, -1)
            self._said.discard((key, rank, header.kind))
        return frames

    def left(self, rank: int) -> None:
        """Drop the data of a member that left; its other frames are kept."""
        for key in list(self._frames):
            self.drop_data(key, rank)

    def clear(self) -> None:
        """Drop all frames."""
        for kept in (self._frames, self._said, self._count, self._bytes, self._data):
            kept.clear()

    def _check_word(self, key: Key, rank: int, header: Header) -> None:
        asked = header.kind is Kind.DONE and header.step == ASK
        if header.kind not in (Kind.OPEN, Kind.ABORT) and not asked:
            raise ProtocolError(
                f"rank {rank} sent {header.kind.name} of an operation nobody opened"
            )
        if (key, rank, header.kind) in self._said:
            raise ProtocolError(f"rank {rank} repeats itself")
        if self._bytes[rank] + header.length > MAX_BYTES:
            raise ProtocolError(f"rank {rank} is too far ahead")

    def _check_data(self, key: Key, rank: int, length: int) -> None:
        opened, over = ((key, rank, k) in self._said for k in (Kind.OPEN, Kind.ABORT))
        if not opened or over:
            raise ProtocolError(f"rank {rank} sent data nobody asked for")
        if self._data[rank] + charge(length) > AHEAD_BYTES:
            raise ProtocolError(f"rank {rank} is too far ahead")

    def drop_data(self, key: Key, rank: int) -> None:
        """Drop a peer's data of an operation: it gave that up, and reuses the room."""
        kept = []
        for frame in self._frames.get(key, []):
            if frame[0] == rank and frame[1].kind is Kind.DATA:
                self._book(rank, frame[1], -1)
            else:
                kept.append(frame)
        if kept:
            self._frames[key] = kept

    def _book(self, rank: int, header: Header, sign: int) -> None:
        self._count[rank] += sign
        if header.kind is Kind.DATA:
            self._data[rank] += sign * charge(header.length)
        else:
            self._bytes[rank] += sign * header.length
