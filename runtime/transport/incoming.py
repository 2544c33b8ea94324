"""The frame that a link is reading: header, payload, and the checksum behind it.

A payload goes into the memory that the sink chose. Where the sink gives a `Flow`
instead, it takes the bytes piece by piece as they come, while they are in the cache;
they count only when the whole frame is delivered, after its checksum.
"""

from collections.abc import Callable
from typing import Protocol

import xxhash

from pcp.errors import ProtocolError
from pcp.runtime.transport.frame import (
    HEADER_BYTES,
    TRAILED,
    TRAILER_BYTES,
    UNCHECKED,
    Header,
    compare,
    unpack_header,
    unpack_trailer,
)

_NOTHING = memoryview(b"")
_PIECE_BYTES = 512 << 10
"""Bytes that are received at a time: they are checked and added in the cache."""


class Flow(Protocol):
    """The receiver of a payload that it takes as it comes."""

    def room(self) -> memoryview:
        """Memory for the next bytes of the payload: some, and not more than remain."""
        ...

    def filled(self, count: int) -> None:
        """Take the first `count` bytes of `room`."""
        ...


class Incoming:
    """The state of one link's reading.

    `place` is the sink's, `deliver` gets whole, verified frames; both are called from
    `took`. `epoch` is demanded of every header, `unchecked` data only where it is
    agreed.
    """

    def __init__(
        self,
        label: str,
        place: Callable[[Header], memoryview | Flow],
        deliver: Callable[[Header, memoryview], None],
    ) -> None:
        self.label = label
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
        self._view = self._raw
        self._fill, self._size = 0, HEADER_BYTES

    @property
    def missing(self) -> int:
        """The bytes that complete the header, payload or checksum being read."""
        return self._size - self._fill

    def room(self) -> memoryview:
        """Memory for the next bytes."""
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

    def copied(self, data: memoryview) -> int:
        """Take some of these bytes, which were read elsewhere; how many."""
        room = self.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        self.took(room, count)
        return count

    def _complete(self) -> None:
        header, total = self._header, self._hash
        if header is None:
            self._begin(unpack_header(self._raw))
        elif self._view is self._trailer:
            compare(header, self._total, unpack_trailer(self._trailer))
            self._end(header)
        else:
            if total is not None:
                self._total = total.intdigest() & 0xFFFFFFFF
                self._hash = self._flow = None
            if header.flags == TRAILED:
                self._expect(self._trailer, TRAILER_BYTES)
                return
            if not header.flags:
                compare(header, self._total, header.checksum)
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
            self._expect(self._raw, HEADER_BYTES)
            self._deliver(header, _NOTHING)
            return
        place = self._place(header)
        self._header = header
        if isinstance(place, memoryview):
            self._payload = place
        else:
            self._flow = place
        self._hash = None if header.flags == UNCHECKED else xxhash.xxh3_64()
        self._expect(self._payload, header.length)

    def _end(self, header: Header) -> None:
        payload, self._payload = self._payload, _NOTHING
        self._header = self._flow = self._hash = None
        self._expect(self._raw, HEADER_BYTES)
        self._deliver(header, payload)

    def _expect(self, view: memoryview, size: int) -> None:
        self._view, self._fill, self._size = view, 0, size
