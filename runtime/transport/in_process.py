"""Frames between two loops of one process: the same contract, no sockets.

Used by tests and by small worlds on one machine. Payloads are copied from the sender's
memory into the memory that the receiver chose, and checksummed on the way, so that all
code above behaves as over TCP.
"""

import threading
import time
from collections import deque

from pcp.errors import PeerLost, ProtocolError, RuntimeFault
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.frame import (
    HEADER_BYTES,
    Frame,
    Kind,
    pack_header,
    unpack_header,
    verify_payload,
)
from pcp.runtime.transport.link import Sink

_NOTHING = memoryview(b"")


class InProcessLink:
    """One end of a pair made by `pair`; see `link.Link`."""

    round_trip = 0.0

    def __init__(self, loop: Loop, sink: Sink, label: str, epoch: int) -> None:
        self.label = label
        self.epoch = epoch
        self.sink = sink
        self.last_heard = self.last_sent = time.monotonic()
        self.bytes_sent = self.bytes_received = 0
        self._loop = loop
        self._peer: InProcessLink | None = None
        self._copying = threading.Lock()
        self._pending: dict[int, Frame] = {}
        self._arrived: deque[tuple[bytes, Frame, int]] = deque()
        self._next = 0
        self._open = True

    def send(self, frame: Frame) -> None:
        """Queue a frame on the peer's loop."""
        peer = self._peer
        if not self._open or peer is None:
            return
        self._next += 1
        self._pending[self._next] = frame
        self.bytes_sent += HEADER_BYTES + len(frame.payload)
        self.last_sent = time.monotonic()
        peer._arrived.append((pack_header(frame, self.epoch), frame, self._next))
        peer._loop.call(peer._receive)

    def recall(self, tag: int, seq: int) -> None:
        """Copy payloads that the peer has not taken: the sender may change them."""
        with self._copying:
            for frame in self._pending.values():
                if frame.kind is Kind.DATA and (frame.tag, frame.seq) == (tag, seq):
                    frame.payload = bytes(frame.payload)
                    frame.on_sent = None

    def exhaust(self) -> None:
        """Deliver the frames that were sent and not delivered yet."""
        for _ in range(len(self._arrived)):
            self._receive()

    def close(self, *, flush: float = 0.0) -> None:
        """End the link; frames sent before are still delivered."""
        peer, self._open = self._peer, False
        if peer is not None:
            self._peer = None
            error = PeerLost(f"{peer.label} closed the connection")
            peer._loop.call(peer._fail, error)

    def sever(self) -> None:
        """Cut the connection like a crash."""
        self.close()

    @property
    def alive(self) -> bool:
        """Whether frames still pass."""
        return self._open

    def _receive(self) -> None:
        peer = self._peer
        if not self._open or peer is None or not self._arrived:
            return
        head, frame, number = self._arrived.popleft()
        try:
            self._take(head, frame, peer)
        except RuntimeFault as fault:
            self._fail(fault)
        peer._loop.call(peer._handed_over, number)

    def _take(self, head: bytes, frame: Frame, peer: "InProcessLink") -> None:
        header = unpack_header(head)
        if header.epoch != self.epoch:
            raise ProtocolError(
                f"{self.label} sent a frame of epoch {header.epoch} on a "
                f"connection of epoch {self.epoch}"
            )
        self.last_heard = time.monotonic()
        self.bytes_received += HEADER_BYTES + header.length
        if not header.length:
            self.sink.deliver(self, header, _NOTHING)
            return
        view = self.sink.place(self, header)
        with peer._copying:
            view[:] = memoryview(frame.payload).cast("B")
        verify_payload(header, view)
        self.sink.deliver(self, header, view)

    def _handed_over(self, number: int) -> None:
        frame = self._pending.pop(number, None)
        if frame is not None and frame.on_sent is not None:
            frame.on_sent()

    def _fail(self, error: RuntimeFault) -> None:
        if self._open:
            self.close()
            self._loop.call(self.sink.lost, self, error)


def pair(
    loops: tuple[Loop, Loop],
    sinks: tuple[Sink, Sink],
    labels: tuple[str, str],
    epoch: int,
) -> tuple[InProcessLink, InProcessLink]:
    """Two connected ends; `labels[i]` names the peer of end i."""
    first = InProcessLink(loops[0], sinks[0], labels[0], epoch)
    second = InProcessLink(loops[1], sinks[1], labels[1], epoch)
    join(first, second)
    return first, second


def join(first: InProcessLink, second: InProcessLink) -> None:
    """Connect two ends; frames that they sent before are lost."""
    first._peer, second._peer = second, first
