"""What buffers take that share an allocation, each while it is in use.

IREE gives the buffers of a submission one allocation, and lays them out greedily
(iree/compiler/Dialect/Stream/Transforms/LayoutSlices.cpp), so that it has gaps.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Where a buffer of an allocation may begin, in bytes.
ALIGNMENT = 64


@dataclass
class Life:
    """A buffer: its bytes, and the steps from and to which it is in use."""

    size: int
    first: int
    last: int


def aligned(size: int) -> int:
    """Bytes that a buffer takes in an allocation."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def packed(lives: Iterable[Life]) -> int:
    """Bytes of the allocation in which buffers lie.

    In the order of their beginnings, each takes the smallest gap of those that are
    free while it lives.
    """
    taken: list[tuple[int, int, int]] = []
    most = 0
    for life in sorted(lives, key=lambda life: life.first):
        taken = [t for t in taken if t[2] >= life.first]
        size = aligned(life.size)
        start = _place(taken, size)
        insort(taken, (start, start + size, life.last))
        most = max(most, start + size)
    return most


def _place(taken: Sequence[tuple[int, int, int]], size: int) -> int:
    """Where the smallest gap of at least this size begins, or behind all of them."""
    best, room, end = -1, -1, 0
    for start, stop, _ in taken:
        if end + size <= start and (best < 0 or start - end < room):
            best, room = end, start - end
        end = max(end, stop)
    return end if best < 0 else best
