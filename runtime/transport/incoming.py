"""The frame that a link is reading: header, payload, and the checksum behind it.

A payload goes into the memory that the sink chose. Where the sink gives a `Flow`
instead, the flow takes the bytes piece by piece as they come, while they are in the
cache; they count only when the whole frame is delivered, after its checksum.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import xxhash

from pcp.errors import ProtocolError
from pcp.runtime.transport import mover
from pcp.runtime.transport.frame import (
    HEADER_BYTES,
    TRAILED,
    TRAILER_BYTES,
    UNCHECKED,
    Header,
    PartialFrame,
    compare,
    unpack_header,
    unpack_trailer,
    verify_payload,
)

_NOTHING = memoryview(b"")
_NO_SUM = ord("-")
_PIECE_BYTES = 512 << 10
"""Bytes that are received at a time: they are checked and added in the cache."""


Progress = tuple[int, int, int]
"""Bytes received, why the loop came back (`mover`), and the error of the system."""


class Flow(Protocol):
    """The receiver of a payload that it takes as it comes."""

    def receive(
        self, loops: ModuleType, descriptor: int, total: Any, budget: int
    ) -> Progress | None:
        """Take what a socket has by the compiled loops; None if these cannot."""
        ...

    def room(self) -> memoryview:
        """Memory for the next bytes of the payload: some, and not more than remain."""
        ...

    def filled(self, count: int) -> None:
        """Take the first `count` bytes of `room`."""
        ...


class IncomingFrame:
    """The state of one link's reading.

    `place` is the sink's, `deliver` gets whole, verified frames; both are called from
    `took`. Every header must have `epoch`; `unchecked` data is only taken where both
    ends agreed.
    """

    def __init__(
        self,
        label: str,
        place: Callable[[Header], memoryview | Flow],
        deliver: Callable[[Header, memoryview], None],
        loops: ModuleType | None = None,
    ) -> None:
        self.label = label
        self._loops = loops
        self.epoch = 0
        self.unchecked = False
        self._place, self._deliver = place, deliver
        self._raw = memoryview(bytearray(HEADER_BYTES))
        self._trailer = memoryview(bytearray(TRAILER_BYTES))
        self._header: Header | None = None
        self._payload = _NOTHING
        self._flow: Flow | None = None
        self._hash: xxhash.xxh3_64 | None = None
        self._total = 0
        """The checksum of the payload whose trailer is being read."""
        self.bulk = False
        """Whether the compiled loops may `receive` what comes next."""
        self._view = self._raw
        self._fill, self._size = 0, HEADER_BYTES

    @property
    def between(self) -> bool:
        """Whether no part of an undelivered frame is here."""
        return self._view is self._raw and not self._fill

    def adopt(self, unread: PartialFrame, flow: Flow) -> None:
        """Go on with a frame that the compiled loop has received in part."""
        header = self._header = unpack_header(unread.header)
        self._hash = None if header.flags == UNCHECKED else unread.total
        self._flow = flow
        self._expect(self._payload, header.length)
        self._fill = header.length - unread.left
        if unread.left:
            self.bulk = self._suits(header)
            return
        self._complete()
        if unread.trailer:
            self.copied(memoryview(unread.trailer))

    def room(self, ahead: memoryview = _NOTHING) -> memoryview:
        """Memory for the next bytes: `ahead`, if they leave room in it for more."""
        if self._size - self._fill < len(ahead):
            return ahead
        if self._flow is not None:
            return self._flow.room()
        return self._view[self._fill : self._fill + _PIECE_BYTES]

    def took(self, room: memoryview, count: int) -> None:
        """Take the first `count` bytes of `room()`."""
        self._fill += count
        if self._hash is not None:
            self._hash.update(room[:count])
        if self._flow is not None:
            self._flow.filled(count)
        if self._fill == self._size:
            self._complete()

    def receive(self, descriptor: int, budget: int) -> Progress | None:
        """Take what a socket has of a bulk payload; None in any other state.

        `settle` has to follow.
        """
        loops = self._loops
        if loops is None or not self.bulk:
            return None
        if self._flow is not None:
            found = self._flow.receive(loops, descriptor, self._hash, budget)
        else:
            room = self._view[self._fill :]
            limits = (0, len(room), budget, _NO_SUM, False)
            count, _, _, *why = loops.receive(
                descriptor, self._hash, room, room, room, *limits
            )
            found = count, *why
        if found is not None:
            self._fill += found[0]
        return found

    def settle(self) -> None:
        """Go on after `receive`, if all of the payload is there."""
        if self._fill == self._size:
            self._complete()

    def copied(self, data: memoryview) -> int:
        """Take some of these bytes, which were read elsewhere; how many."""
        if self._view is self._raw and not self._fill and len(data) >= HEADER_BYTES:
            self._begin(unpack_header(data))
            return HEADER_BYTES
        if self._flow is None and self._hash is None:
            at = self._fill
            count = min(self._size - at, len(data))
            self._fill = end = at + count
            self._view[at:end] = data[:count]
            if end == self._size:
                self._complete()
            return count
        room = self.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        self.took(room, count)
        return count

    def _complete(self) -> None:
        header, total = self._header, self._hash
        if header is None:
            self._fill = 0
            self._begin(unpack_header(self._raw))
        elif self._view is self._trailer:
            compare(header, self._total, unpack_trailer(self._trailer))
            self._end(header)
        elif header.flags == TRAILED:
            assert total is not None, "the checksum of what has come"
            self._total = total.intdigest() & 0xFFFFFFFF
            self._hash = self._flow = None
            self._expect(self._trailer, TRAILER_BYTES)
        else:
            if total is not None:
                compare(header, total.intdigest() & 0xFFFFFFFF, header.checksum)
            elif not header.flags:
                verify_payload(header, self._payload)
            self._end(header)

    def _begin(self, header: Header) -> None:
        """Find the place of the payload that follows a header."""
        if header.epoch != self.epoch:
            raise ProtocolError(
                f"{self.label} sent a frame of epoch {header.epoch} on a "
                f"connection of epoch {self.epoch}"
            )
        if header.flags == UNCHECKED and not self.unchecked:
            raise ProtocolError(f"{self.label} sent data without a checksum")
        if not header.length:
            self._deliver(header, _NOTHING)
            return
        place = self._place(header)
        self._header = header
        if isinstance(place, memoryview):
            self._payload = place
        else:
            self._flow = place
        suits = header.flags != 0 and self._suits(header)
        self._hash = None
        # What goes into memory, and has its checksum in front, is checked at once when
        # it is whole: it is small.
        if header.flags == TRAILED or (not header.flags and self._flow is not None):
            self._hash = mover.hasher(self._loops if suits else None)
        self._expect(self._payload, header.length)
        self.bulk = suits

    def _suits(self, header: Header) -> bool:
        """Whether there are compiled loops, for so large a payload."""
        bulk = header.flags != 0 and header.length >= mover.BULK_BYTES
        return bulk and self._loops is not None

    def _end(self, header: Header) -> None:
        payload, self._payload = self._payload, _NOTHING
        self._header = self._flow = self._hash = None
        self._expect(self._raw, HEADER_BYTES)
        self._deliver(header, payload)

    def _expect(self, view: memoryview, size: int) -> None:
        self._view, self._fill, self._size = view, 0, size
        self.bulk = False
