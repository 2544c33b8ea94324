"""Segments that are added, or taken over, as they come: while they are in the cache."""

from types import ModuleType
from typing import Any, Protocol

from numpy.typing import NDArray

from pcp.runtime.collectives.schedule import Move
from pcp.runtime.memory.buffer_pool import octets
from pcp.runtime.transport.frame import PartialFrame
from pcp.runtime.transport.incoming import Progress

_NO_SUM = ord("-")
PIECE_BYTES = 256 << 10
"""Bytes that are received and then added while they are in the cache."""


class FlatBuffer:
    """A flat array and its bytes, of which parts are taken."""

    __slots__ = ("array", "itemsize", "octets")

    def __init__(self, array: NDArray) -> None:
        self.array, self.itemsize, self.octets = array, array.itemsize, octets(array)

    def part(self, start: int, stop: int) -> memoryview:
        """The bytes of a range of elements."""
        return self.octets[start * self.itemsize : stop * self.itemsize]


class SegmentOperation(Protocol):
    """The operation that a segment is of."""

    over: bool

    @property
    def itemsize(self) -> int:
        """The bytes of an element of the result."""
        ...

    @property
    def sum_code(self) -> int | None:
        """The addition of the compiled loops; None where they have none."""
        ...

    @property
    def sum_travels(self) -> bool:
        """Whether what comes is the left operand."""
        ...

    def move(self, index: int) -> Move:
        """A move of this member."""
        ...

    def room(self, start: int, stop: int) -> memoryview:
        """The memory of a range of the result."""
        ...

    def operands(
        self, move: Move, start: int, stop: int
    ) -> tuple[memoryview, memoryview]:
        """The memory of a sum, and of what is here of it."""
        ...

    def spare(self, nbytes: int) -> FlatBuffer:
        """Scratch memory of so many bytes, until `back`."""
        ...

    def back(self, buffer: FlatBuffer) -> None:
        """Take scratch memory back."""
        ...

    def add(self, move: Move, came: NDArray, start: int, stop: int) -> None:
        """Add what has come to what is here; finish it if it was the last."""
        ...

    def added(self, move: Move, start: int, stop: int) -> None:
        """Finish a range of a sum if this was the last addition."""
        ...


class SegmentFlow:
    """A payload of one move that is added, or taken over, as it comes.

    The sums go on to others when the payload has arrived: its checksum comes last.
    """

    __slots__ = ("_at", "_fill", "_left", "_move", "_of", "_scratch", "_view")

    def __init__(
        self, of: "SegmentOperation", index: int, start: int, stop: int, nbytes: int
    ) -> None:
        self._of, self._at = of, start
        self._move = of.move(index)
        self._left = nbytes
        self._fill = 0
        """Bytes in front of the room: taken over, or of an element still in parts."""
        scratch = of.spare(PIECE_BYTES) if self._move.reduce else None
        self._scratch = scratch
        self._view = of.room(start, stop) if scratch is None else scratch.octets

    def resume(self, unread: PartialFrame) -> None:
        """Go on where the compiled loop was."""
        self._at, self._fill, self._left = unread.at, unread.fill, unread.left
        if self._scratch is not None:
            self._view[: len(unread.odd)] = unread.odd
            self._end()

    def receive(
        self, loops: ModuleType, descriptor: int, total: Any, budget: int
    ) -> Progress | None:
        """Take what a socket has by the compiled loops; None if these cannot."""
        of, scratch = self._of, self._scratch
        code = _NO_SUM if scratch is None else of.sum_code
        if of.over or code is None:
            return None
        size, fill, room = of.itemsize, 0, self._view[self._fill :]
        if scratch is None:
            out = here = room
        else:
            size, fill, room = scratch.itemsize, self._fill, self._view
            stop = self._at + (fill + self._left) // size
            out, here = of.operands(self._move, self._at, stop)
        limits = (fill, self._left, budget, code, of.sum_travels)
        count, done, fill, *why = loops.receive(
            descriptor, total, out, here, room, *limits
        )
        self._left -= count
        if scratch is None:
            self._fill += done
        else:
            start, self._at, self._fill = self._at, self._at + done // size, fill
            of.added(self._move, start, self._at)
            self._end()
        return count, *why

    def room(self) -> memoryview:
        """Memory for the next bytes."""
        if self._of.over and self._scratch is None:
            # The caller may have the memory again.
            self._view, self._fill = memoryview(bytearray(PIECE_BYTES)), 0
        return self._view[self._fill :][: min(self._left, PIECE_BYTES)]

    def filled(self, count: int) -> None:
        """Go on with the elements that are whole now."""
        of, scratch = self._of, self._scratch
        self._left -= count
        if of.over:
            self._fill = 0
            return
        self._fill += count
        if scratch is None:
            return
        whole, odd = divmod(self._fill, scratch.itemsize)
        of.add(self._move, scratch.array[:whole], self._at, self._at + whole)
        if odd:
            end = self._fill - odd
            self._view[:odd] = self._view[end : self._fill]
        self._at, self._fill = self._at + whole, odd
        self._end()

    def _end(self) -> None:
        if not self._left and self._scratch is not None:
            self._of.back(self._scratch)
