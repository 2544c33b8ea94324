"""Frames of peers that are ahead of us, kept until our own call comes.

A peer may be ahead by as many operations as may be under way, and by as many
bytes as their openings have; beyond that it is not ahead but wrong. Each peer
has a bound of its own, so that one cannot use up what another needs.
"""

from collections import Counter

from pcp.errors import ProtocolError
from pcp.runtime.framing import Header, Kind
from pcp.runtime.reduction import EAGER_BYTES

MAX_IN_FLIGHT = 1024
"""Operations a member may have under way; bounds what peers must park."""
MAX_FRAMES = 4 * MAX_IN_FLIGHT
MAX_BYTES = 2 * MAX_IN_FLIGHT * EAGER_BYTES

Key = tuple[int, int]
Parked = tuple[int, Header, memoryview]


class Parking:
    """What is kept, by operation."""

    def __init__(self) -> None:
        self._frames: dict[Key, list[Parked]] = {}
        self._count: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()

    def hold(self, key: Key, rank: int, header: Header, payload: memoryview) -> None:
        """Keep a frame; ProtocolError when this rank has no business to send it."""
        if header.kind not in (Kind.OPEN, Kind.ABORT):
            raise ProtocolError(
                f"rank {rank} sent {header.kind.name} of an operation nobody opened"
            )
        frames = self._frames.get(key, [])
        if any(who == rank and h.kind is header.kind for who, h, _ in frames):
            raise ProtocolError(f"rank {rank} repeats itself")
        if (
            self._count[rank] >= MAX_FRAMES
            or self._bytes[rank] + header.length > MAX_BYTES
        ):
            raise ProtocolError(f"rank {rank} is too far ahead")
        self._frames.setdefault(key, []).append((rank, header, payload))
        self._count[rank] += 1
        self._bytes[rank] += header.length

    def take(self, key: Key) -> list[Parked]:
        """The frames of an operation, which are kept no longer."""
        frames = self._frames.pop(key, [])
        for rank, header, _ in frames:
            self._count[rank] -= 1
            self._bytes[rank] -= header.length
        return frames

    def clear(self) -> None:
        """Keep nothing."""
        self._frames.clear()
        self._count.clear()
        self._bytes.clear()
