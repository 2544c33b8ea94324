"""Blocks of memory that are used again, private or mapped by several processes.

Fresh memory costs a page fault every 4 KiB, which for large arrays takes as long as
moving the bytes. An arena keeps returned blocks, up to a limit. `PRIVATE` blocks are
for scratch (`buffer_pool`), `shared_segment.SHARED` blocks for arrays that members of
one machine read from each other (`shared_scratch`, `shared_arrays`).
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

LIMIT = 512 << 20
"""Bytes of free blocks that an arena keeps."""


class Block(Protocol):
    """A piece of memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        ...


B = TypeVar("B", bound=Block)


@dataclass(frozen=True)
class Placement(Generic[B]):
    """Where blocks come from, and which block serves which size."""

    create: Callable[[int], B]
    """OSError or AttributeError where the system has no such memory, or no more."""
    close: Callable[[B], None]
    grain: int
    """Sizes of blocks are multiples of this many bytes."""
    spare: int = 0
    """A block may be so many times as large as its lease asks for, and a grain."""
    most: int | None = None
    """Blocks at a time, leased and free; None for any number."""

    def size(self, nbytes: int) -> int:
        """The size (bytes) of a block that is created for so many bytes."""
        return -(-max(nbytes, 1) // self.grain) * self.grain

    def largest(self, nbytes: int) -> int:
        """The size (bytes) of the largest block that serves so many bytes."""
        return self.spare * nbytes + self.grain if self.spare else self.size(nbytes)


PRIVATE: "Placement[NDArray]" = Placement(
    create=lambda nbytes: np.empty(nbytes, np.uint8),
    close=lambda block: None,
    grain=64 << 10,
)
"""Memory of this process alone."""


class Arena(Generic[B]):
    """Blocks of one placement; safe to use from several threads.

    A leased block comes back by `give`, by `drop` or, if it may still be in use, by
    `lose`. A block that a garbage collector drops, at any point of any thread, waits
    outside the lock for the next call: at most `limit` bytes of such blocks.
    """

    def __init__(self, placement: Placement[B], limit: int = LIMIT) -> None:
        self.placement = placement
        self._limit = limit
        self._shelves: dict[int, list[B]] = {}
        """The free blocks by size; those used last at the end."""
        self._kept = 0
        self._leased = 0
        self._dropped: deque[tuple[B | None, int]] = deque()
        """Dropped blocks, and the bytes of all up to each; None for a closed block."""
        self._lock = threading.Lock()

    def lease(self, nbytes: int) -> B | None:
        """A block of at least so many bytes, uninitialised; None without memory."""
        with self._lock:
            self._collect()
            block = self._take(nbytes)
            if block is not None:
                self._leased += 1
                return block
            if not self._has_room():
                return None
        try:
            block = self.placement.create(self.placement.size(nbytes))
        except (OSError, AttributeError):
            return None
        with self._lock:
            self._leased += 1
        return block

    def give(self, block: B) -> None:
        """End a lease: the block is free."""
        with self._lock:
            self._leased -= 1
            self._keep(block)

    def drop(self, block: B, *, reusable: bool = True) -> None:
        """End a lease from a garbage collector. Takes no lock and counts nothing."""
        before = self._dropped_bytes()
        if reusable and before + block.nbytes <= self._limit:
            self._dropped.append((block, before + block.nbytes))
        else:
            self._dropped.append((None, before))
            self.placement.close(block)

    def lose(self, block: B) -> None:
        """End the lease of a block that may still be in use: it is never free again."""
        self.drop(block, reusable=False)

    @property
    def free(self) -> list[B]:
        """The blocks that a lease can take."""
        with self._lock:
            self._collect()
            return [block for shelf in self._shelves.values() for block in shelf]

    def close(self) -> None:
        """Release the free blocks. A leased block stays with its user."""
        with self._lock:
            self._limit = 0
            self._collect()
            while self._kept:
                self._forget_oldest()

    # Inside.

    def _dropped_bytes(self) -> int:
        try:
            return self._dropped[-1][1]
        except IndexError:
            return 0

    # Inside, under the lock.

    def _collect(self) -> None:
        while self._dropped:
            block, _ = self._dropped.popleft()
            self._leased -= 1
            if block is not None:
                self._keep(block)

    def _take(self, nbytes: int) -> B | None:
        """The smallest free block that is large enough and not much too large."""
        size = self.placement.size(nbytes)
        if size not in self._shelves:
            fit = range(size, self.placement.largest(nbytes) + 1)
            size = min((s for s in self._shelves if s in fit), default=0)
        if not size:
            return None
        block = self._pop(size)
        if shelf := self._shelves.pop(size, None):
            self._shelves[size] = shelf  # behind those that were used before
        return block

    def _has_room(self) -> bool:
        """Whether one more block may be created; free ones give way."""
        most = self.placement.most
        if most is None:
            return True
        while self._kept and self._leased + self._count() >= most:
            self._forget_oldest()
        return self._leased < most

    def _count(self) -> int:
        return sum(map(len, self._shelves.values()))

    def _keep(self, block: B) -> None:
        if block.nbytes > self._limit:
            self.placement.close(block)
            return
        shelf = self._shelves.pop(block.nbytes, [])
        shelf.append(block)
        self._shelves[block.nbytes] = shelf  # behind those that were used before
        self._kept += block.nbytes
        while self._kept > self._limit:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        block = self._pop(next(iter(self._shelves)))
        self.placement.close(block)

    def _pop(self, size: int) -> B:
        shelf = self._shelves[size]
        block = shelf.pop()
        self._kept -= size
        if not shelf:
            del self._shelves[size]
        return block
