"""A frame on its way out, and how much of it is still to send.

Checksums are computed when the bytes are about to be sent: the kernel then reads them
from the cache. That of a large payload stands behind it, and is computed by pieces.
"""

import xxhash

from pcp.runtime.transport.frame import (
    TRAILED,
    UNCHECKED,
    Frame,
    Kind,
    pack_header,
    pack_trailer,
)

PIECE_BYTES = 512 << 10
"""Bytes of one payload in one system call, at most."""
_TRAILED_BYTES = 32 << 10
"""From this size on the checksum of data stands behind it."""


class Outgoing:
    """A frame in the queue of a link; `views` are its bytes for the next call."""

    __slots__ = ("_hash", "_rest", "_unchecked", "epoch", "frame", "started", "views")

    def __init__(self, frame: Frame, epoch: int, *, unchecked: bool = False) -> None:
        self.frame = frame
        self.epoch = epoch
        self.started = False
        self.views: list[memoryview] = []
        self._rest: memoryview | None = None
        """The part of the payload that is in no view yet."""
        self._hash: xxhash.xxh3_64 | None = None
        self._unchecked = unchecked

    @property
    def whole(self) -> bool:
        """Whether all bytes that are still to send are in `views`."""
        return self.started and self._rest is None

    @property
    def sent(self) -> bool:
        """Whether all bytes are sent."""
        return self.whole and not self.views

    def pack(self) -> list[memoryview]:
        """The bytes to send next, up to `PIECE_BYTES` of the payload."""
        if not self.started:
            self._start()
        if self._rest is not None and not (self.views and len(self.views[-1]) > 64):
            self._cut()
        return self.views

    def _start(self) -> None:
        self.started = True
        frame, flags = self.frame, 0
        if frame.kind is Kind.DATA and frame.checksum is None:
            large = len(frame.payload) >= _TRAILED_BYTES
            flags = UNCHECKED if self._unchecked else TRAILED if large else 0
        self.views = [memoryview(pack_header(frame, self.epoch, flags=flags))]
        if len(frame.payload):
            self._rest = memoryview(frame.payload).cast("B")
            self._hash = xxhash.xxh3_64() if flags == TRAILED else None

    def _cut(self) -> None:
        rest = self._rest
        assert rest is not None, "a payload that is not sent yet"
        piece = rest[:PIECE_BYTES]
        self._rest = rest[PIECE_BYTES:] if len(rest) > PIECE_BYTES else None
        self.views.append(piece)
        if self._hash is not None:
            self._hash.update(piece)
            if self._rest is None:
                trailer = pack_trailer(self._hash.intdigest())
                self.views.append(memoryview(trailer))

    def advance(self, count: int) -> int:
        """Take `count` sent bytes off; the number that belongs to the next frame."""
        views = self.views
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if views and count:
            views[0] = views[0][count:]
            count = 0
        return count

    def detach(self) -> None:
        """Copy the rest of the bytes: the sender's buffer may change now."""
        self.views = [memoryview(bytes(view)) for view in self.views]
        if self._rest is not None:
            self._rest = memoryview(bytes(self._rest))
        self.frame.on_sent = None
