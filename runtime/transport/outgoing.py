"""A frame on its way out, and how much of it is still to send.

Checksums are computed when the bytes are about to be sent: the kernel then reads them
from the cache. That of a large payload stands behind it, and is computed by pieces.
"""

import os
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import xxhash

from pcp.runtime.transport import mover
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
_TURN_BYTES = 4 << 20
_GATHER_BYTES = 512 << 10
_GATHER_VIEWS = 32
"""One system call sends frames until one of these is reached."""


class OutgoingFrame:
    """A frame in the queue of a link; `views` are its bytes for the next call."""

    __slots__ = (
        "_flags",
        "_hash",
        "_hashed",
        "_rest",
        "_sent",
        "bulk",
        "epoch",
        "frame",
        "started",
        "views",
        "whole",
    )

    def __init__(self, frame: Frame, epoch: int, *, unchecked: bool = False) -> None:
        self.frame = frame
        self.epoch = epoch
        self.started = self.whole = False
        """Whether bytes were packed, and whether all that are left are in `views`."""
        self.views: list[memoryview] = []
        data = frame.kind is Kind.DATA and frame.checksum is None
        self.bulk = data and len(frame.payload) >= mover.BULK_BYTES
        """Whether it may go through `send_bulk`."""
        self._flags = 0
        if data:
            self._flags = UNCHECKED if unchecked else TRAILED if self.bulk else 0
        self._rest: memoryview | None = None
        """The part of the payload that is in no view yet."""
        self._hash: xxhash.xxh3_64 | None = None
        self._sent = self._hashed = 0
        """Bytes of the frame that are sent, and of the payload in the checksum."""

    @classmethod
    def resumed(
        cls,
        frame: Frame,
        epoch: int,
        unchecked: bool,
        sent: int,
        hashed: int,
        total: Any,
    ) -> "OutgoingFrame":
        """A DATA frame that the compiled loop has sent in part; `total` is its hash."""
        out = cls(frame, epoch, unchecked=unchecked)
        out._flags = UNCHECKED if unchecked else TRAILED
        out.bulk = out.started = True
        out.views = [memoryview(pack_header(frame, epoch, flags=out._flags))]
        out._rest = memoryview(frame.payload).cast("B")
        out._hash = None if unchecked else total
        out._sent, out._hashed = sent, hashed
        return out

    @property
    def sent(self) -> bool:
        """Whether all bytes are sent."""
        return self.whole and not self.views

    def send_bulk(self, loops: ModuleType, descriptor: int) -> int:
        """Send what a socket takes; how many bytes. BlockingIOError, OSError."""
        if not self.started:
            self._start(loops)
        payload, head = self._rest, self.views[0]
        before = self._sent
        self._sent, self._hashed, status, error = loops.send(
            descriptor, self._hash, head, payload, before, self._hashed, _TURN_BYTES
        )
        count = self._sent - before
        if status and not count:
            raise OSError(error, os.strerror(error))  # a BlockingIOError, most often
        if self._sent == self._size:
            self.views, self._rest = [], None
            self.whole = True
        return count

    @property
    def _size(self) -> int:
        trailer = 4 if self._hash is not None else 0
        return len(self.views[0]) + len(self.frame.payload) + trailer

    def pack(self) -> list[memoryview]:
        """The bytes to send next, up to `PIECE_BYTES` of the payload."""
        if not self.started:
            self._start(None)
        if self._rest is not None and not (self.views and len(self.views[-1]) > 64):
            self._cut()
        return self.views

    def _start(self, loops: ModuleType | None) -> None:
        self.started = True
        frame = self.frame
        head = pack_header(frame, self.epoch, flags=self._flags)
        self.views = [memoryview(head)]
        if not (length := len(frame.payload)):
            self.whole = True
            return
        payload = memoryview(frame.payload).cast("B")
        if self._flags == TRAILED:
            self._hash = mover.hasher(loops)
        elif not self.bulk and length <= PIECE_BYTES:
            self.views.append(payload)
            self.whole = True
            return
        self._rest = payload

    def _cut(self) -> None:
        rest = self._rest
        assert rest is not None, "a payload that is not sent yet"
        piece = rest[:PIECE_BYTES]
        self.whole = len(rest) <= PIECE_BYTES
        self._rest = None if self.whole else rest[PIECE_BYTES:]
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


def gathered(
    queue: Iterable[OutgoingFrame], loops: ModuleType | None
) -> list[memoryview]:
    """The bytes for one system call: a few frames, not too many bytes.

    Bulk frames that the compiled loops send are none of these.
    """
    views: list[memoryview] = []
    size = 0
    for out in queue:
        if out.bulk and loops is not None:
            break
        views += out.pack()
        size += len(out.frame.payload)
        if size >= _GATHER_BYTES or len(views) >= _GATHER_VIEWS or not out.whole:
            break
    return views
