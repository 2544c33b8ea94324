"""The reduction of a large array for one member: along the ring, then to the root.

Each member sends its reduced chunk to the root.
"""

from typing import Any

from pcp.errors import ProtocolError
from pcp.runtime.collectives.direct import Ring
from pcp.runtime.memory.buffer_pool import octets
from pcp.runtime.transport.frame import Header


class RingToRoot(Ring):
    """The ring's reduction; its owners then send their chunks to the root."""

    def __init__(self, *args: Any, root: int, **options: Any) -> None:
        super().__init__(*args, gather=False, **options)
        self._root = root
        self._at = {peer: self._chunks[peer][0] for peer in self.peers}

    def place(self, peer: int, header: Header) -> memoryview:
        if header.step < self._last:
            return super().place(peer, header)
        start, end = self._at[peer], self._chunks[peer][1]
        stop = min(start + self._step, end)
        room = self._out[start:stop]
        expected = (self._last, start, room.nbytes)
        if (
            self._rank != self._root
            or not room.size
            or expected
            != (
                header.step,
                header.offset,
                header.length,
            )
        ):
            raise ProtocolError(f"{self.name}: rank {peer} sent bytes out of place")
        return octets(room)

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        if header.step == self._last:
            self._at[peer] += len(payload) // self._dtype.itemsize
            return
        super().arrived(peer, header, payload)
        if header.step == self._last - 1 and self._rank != self._root:
            count = len(payload) // self._reduction.accumulator.itemsize
            done = self._out[header.offset : header.offset + count]
            self.send_data(self._root, self._last, header.offset, octets(done))

    def complete(self) -> bool:
        chunks = self._chunks
        whole = all(at == chunks[peer][1] for peer, at in self._at.items())
        return super().complete() and (whole or self._rank != self._root)

    @property
    def _last(self) -> int:
        """The step in which chunks go to the root."""
        return self._size - 1
