"""Frames over a TCP connection, without blocking and without copying.

Payloads go from the caller's memory to the kernel (`sendmsg`) and from the
kernel into the memory the sink chose (`recv_into`).
"""

import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from pcp.errors import PeerLost, RuntimeFault
from pcp.runtime.transport import mover
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.frame import Frame, Header, Kind, PartialFrame, text_payload
from pcp.runtime.transport.incoming import Flow, IncomingFrame
from pcp.runtime.transport.link import (
    Borrower,
    Sink,
    Wire,
    round_trip,
    translate,
    within_machine,
)
from pcp.runtime.transport.outgoing import OutgoingFrame, gathered

_WASTE = memoryview(bytearray(256 << 10))
"""The size of the buffer for dropped bytes, for few calls."""
_TURN_BYTES = 4 << 20
"""At most this much is read from one peer before the others get a turn."""
_ALL_BYTES = 64 << 20
"""More bytes than a kernel keeps for the reader of one connection."""
_AT_ONCE = 4 << 10
"""Payloads from this size on are sent at once, without waiting for more frames."""
_AHEAD_BYTES = 16 << 10


class TcpLink:
    """A link over a connected socket; see `link.Link`."""

    def __init__(
        self, loop: Loop, sock: Wire, sink: Sink, label: str, epoch: int = 0
    ) -> None:
        self.label = label
        self.flow: Callable[[Header], Flow | None] | None = None
        """The receivers of data that is processed as it comes, if any."""
        self.borrower: Borrower | None = None
        """The loop that has the socket, except within frames of the link."""
        self._loops = mover.compiled if type(sock) is socket.socket else None
        self._incoming = IncomingFrame(label, self._place, self._deliver, self._loops)
        self.epoch = epoch
        self.sink = sink
        self.last_heard = self.last_sent = time.monotonic()
        self.bytes_sent = self.bytes_received = 0
        self._loop = loop
        self._sock = sock
        self._buffered = getattr(sock, "buffered", None)
        self._queue: deque[OutgoingFrame] = deque()
        self._ahead = memoryview(bytearray())
        self._events = 0
        self._open = True
        self._corked = False
        self._writing = False
        self._leaving = False
        self._flushed = False
        self._deaf = False
        self._reading = False
        self._mute: RuntimeFault | None = None
        sock.setblocking(False)
        loop.call(self._start)

    @property
    def epoch(self) -> int:
        """The epoch of every frame, either way."""
        return self._incoming.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._incoming.epoch = epoch

    @property
    def unchecked(self) -> bool:
        """Whether data has no checksum, either way, as both ends have agreed."""
        return self._incoming.unchecked

    @unchecked.setter
    def unchecked(self, unchecked: bool) -> None:
        self._incoming.unchecked = unchecked

    def send(self, frame: Frame) -> None:
        """Queue a frame and send as much as the kernel takes.

        Small frames wait for the end of the loop's turn unless they are urgent: each
        system call wakes the peer, which costs more than the bytes do.
        """
        if not self._open or self._leaving or self._mute is not None:
            return
        link = self._incoming
        self._queue.append(OutgoingFrame(frame, link.epoch, unchecked=link.unchecked))
        if frame.urgent or len(frame.payload) >= _AT_ONCE:
            if len(self._queue) == 1 or self._corked:
                self._corked = False
                self._writable()
        elif len(self._queue) == 1:
            self._corked = True
            self._loop.call(self._uncork)

    def flush(self) -> None:
        """Send small frames now, which wakes the peer."""
        self._uncork()

    def _uncork(self) -> None:
        if self._corked:
            self._corked = False
            if self._open:
                self._writable()

    def recall(self, tag: int, seq: int) -> None:
        """Drop an operation's queued frames; finish a started one from a copy."""
        kept: deque[OutgoingFrame] = deque()
        for out in self._queue:
            frame = out.frame
            if frame.kind is not Kind.DATA or (frame.tag, frame.seq) != (tag, seq):
                kept.append(out)
            elif out.started:
                out.detach()
                kept.append(out)
        self._queue = kept

    def exhaust(self) -> None:
        """Deliver the frames in the kernel's buffer, up to a bound."""
        self._reclaim()
        if self._open and not self._reading:
            self._readable(_ALL_BYTES)

    def close(self, *, flush: float = 0.0) -> None:
        """Send the queued frames for up to `flush` seconds, then close the socket."""
        if not self._open or self._leaving:
            return
        if flush <= 0:
            self._end()
            return
        self._leaving = True
        self._loop.later(flush, self._end)
        if not self._queue:
            self._half_close()

    def read_ahead(self) -> None:
        """Read small frames together; the socket is then the link's for good."""
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))

    def refuse(self, reason: str, code: int = 0) -> None:
        """Send the peer a refusal with the reason, and close."""
        if self._open and not self._leaving:
            self.send(Frame(Kind.REFUSE, step=code, payload=text_payload(reason)))
            self._deaf = True
            self.close(flush=1.0)

    def detach(self) -> Wire:
        """The blocking socket itself; this link ends without closing it."""
        self._want(0)
        self._open = False
        self._sock.setblocking(True)
        return self._sock

    def sever(self) -> None:
        """Cut the connection like a crash."""
        self._end()

    # For a borrower.

    @property
    def lendable(self) -> bool:
        """Whether a compiled loop may have the socket."""
        works = self._open and self._mute is None and not self._deaf
        return works and self._loops is not None and not self._leaving

    def ends(self) -> tuple[int, int]:
        """The descriptors to read from and to send to now, -1 for none.

        Frames of the link go first, but behind one that is partly sent.
        """
        assert self.borrower is not None, "the socket is lent"
        if not self._open:
            return -1, -1
        descriptor, waiting = self._sock.fileno(), bool(self._queue)
        midway = waiting and self.borrower.midway(self)
        reads = not self._deaf and self._incoming.between
        sends = midway or not waiting
        return descriptor if reads else -1, descriptor if sends else -1

    def moved(self, received: int, sent: int) -> None:
        """Note bytes that a borrower moved."""
        self._heard(received)
        if sent:
            self.bytes_sent += sent
            self.last_sent = time.monotonic()

    def take(self, head: bytes) -> None:
        """Read on from the bytes of another frame, to the end of that."""
        self._taken(self._copied, memoryview(head))
        if self._open and not self._incoming.between:
            self._readable()

    def resume(self) -> None:
        """Send the frames of the link that wait."""
        if self._queue and self._open:
            self._writable()

    def take_back(
        self,
        head: bytes,
        unread: PartialFrame | None,
        flow: Flow | None,
        unsent: OutgoingFrame | None,
    ) -> None:
        """Take the socket back, with the frames that the borrower has moved in part."""
        self.borrower = None
        if not self._open:
            return
        if unsent is not None:
            self._queue.appendleft(unsent)
        if head:
            self._taken(self._copied, memoryview(head))
        if unread is not None and flow is not None:
            self._taken(self._incoming.adopt, unread, flow)
        self._loop.call(self.resume)

    def _reclaim(self) -> None:
        if self.borrower is not None:
            self.borrower.give_back()

    @property
    def alive(self) -> bool:
        """Whether the socket is still open."""
        return self._open

    @property
    def local(self) -> bool:
        """Whether both ends have the same address: one machine, most likely."""
        return within_machine(self._sock)

    @property
    def round_trip(self) -> float:
        """Seconds to the peer and back, as the kernel knows them; 0.0: not known."""
        return round_trip(self._sock)

    def _start(self) -> None:
        if self._open:
            self._want(selectors.EVENT_READ)

    def _want(self, events: int) -> None:
        if events != self._events:
            self._events = events
            self._loop.watch(self._sock, events, self._ready)

    def _ready(self, events: int) -> None:
        if self._open and events & selectors.EVENT_WRITE:
            self._writable()
        if self._open and events & selectors.EVENT_READ:
            self._readable()

    def _writable(self) -> None:
        if self.borrower is not None and self.borrower.midway(self):
            return  # the borrower reports when its frame is sent
        if self._writing:  # called from an `on_sent`: the loop below goes on
            return
        self._writing = True
        try:
            self._write()
        finally:
            self._writing = False

    def _write(self) -> None:
        while self._queue and self._open:
            out, loops = self._queue[0], self._loops
            try:
                if loops is not None and out.bulk:
                    count = out.send_bulk(loops, self._sock.fileno())
                else:
                    count = mover.send(self._sock, gathered(self._queue, loops), loops)
            except BlockingIOError:
                self._want(selectors.EVENT_READ | selectors.EVENT_WRITE)
                return
            except OSError as error:
                self._lose_voice(translate(error, self.label, "sending"))
                return
            self._sent(count)
        if self._open:
            self._want(selectors.EVENT_READ)
            if self._leaving:
                self._half_close()

    def _sent(self, count: int) -> None:
        self.bytes_sent += count
        self.last_sent = time.monotonic()
        queue = self._queue
        while queue:
            out = queue[0]
            if not (out.bulk and self._loops is not None):
                count = out.advance(count)
            if out.views or not out.whole:
                return
            queue.popleft()
            if out.frame.on_sent is not None:
                out.frame.on_sent()

    def _lose_voice(self, error: RuntimeFault) -> None:
        """Stop sending; frames that have arrived are still read.

        The peer may have voted and died: the error of a send must not hide the vote.
        """
        self._mute = error
        self._reclaim()
        self._queue.clear()
        self._want(0)
        self._loop.call(self._read_on)

    def _readable(self, budget: int = _TURN_BYTES) -> None:
        self._reading = True
        try:
            self._read(budget)
        finally:
            self._reading = False
        # The selector reports neither bytes that TLS has already, nor a connection
        # whose other direction broke.
        buffered = self._buffered is not None and self._buffered()
        if self._open and (buffered or self._mute is not None):
            self._loop.call(self._read_on)

    def _read(self, budget: int) -> None:
        while budget > 0 and self._open:
            if self.borrower is not None and self._incoming.between:
                return
            try:
                count, more = self._receive(budget)
            except BlockingIOError:
                if self._mute is not None:
                    self._fail(self._mute)
                return
            except OSError as error:
                self._fail(self._mute or translate(error, self.label, "receiving"))
                return
            if not count:
                closed = PeerLost(f"{self.label} closed the connection")
                self._fail(self._mute or closed)
                return
            budget -= count
            announced = self._buffered is None and self._mute is None
            if not more and announced and budget <= _TURN_BYTES:
                return  # the kernel has no more bytes, and reports new ones

    def _receive(self, budget: int) -> tuple[int, bool]:
        """Receive once: how many bytes, and whether there may be more of them."""
        incoming = self._incoming
        if incoming.bulk and not self._deaf:
            progress = incoming.receive(self._sock.fileno(), budget)
            if progress is not None:
                count, why, error = progress
                if not count and why in (mover.BLOCKED, mover.FAILED):
                    raise OSError(error, os.strerror(error))
                self._heard(count)
                self._taken(incoming.settle)
                return count, not why
        if self._deaf:
            room = _WASTE
        elif self.borrower is not None:
            room = incoming.room()  # what follows is the borrower's
        else:  # small frames are read several at a time
            room = incoming.room(self._ahead)
        count = mover.receive(self._sock, room, self._loops)
        if count:
            self.last_heard = time.monotonic()
            self.bytes_received += count
            if not self._deaf:
                self._taken(self._received, room, count)
        return count, count == len(room)

    def _heard(self, count: int) -> None:
        if count:
            self.last_heard = time.monotonic()
            self.bytes_received += count

    def _taken(self, what: Callable[..., object], *args: Any) -> None:
        """Take what has come, or refuse the peer."""
        try:
            what(*args)
        except RuntimeFault as fault:
            self.refuse(str(fault))
            self._loop.call(self.sink.lost, self, fault)

    def _read_on(self) -> None:
        if self._open:
            self._readable()

    def _received(self, room: memoryview, count: int) -> None:
        if room is not self._ahead:
            self._incoming.took(room, count)
            return
        self._copied(room[:count])

    def _copied(self, data: memoryview) -> None:
        """Take bytes that were read elsewhere."""
        incoming, at = self._incoming, 0
        while at < len(data) and self._open and not self._deaf:
            at += incoming.copied(data[at:])

    def _place(self, header: Header) -> memoryview | Flow:
        if header.kind is Kind.DATA and self.flow is not None:
            flow = self.flow(header)
            if flow is not None:
                return flow
        return self.sink.place(self, header)

    def _deliver(self, header: Header, payload: memoryview) -> None:
        self.sink.deliver(self, header, payload)

    def _half_close(self) -> None:
        """Shut down the sending direction; wait for the peer's end before closing.

        Closing with unread bytes would reset the connection and could destroy
        bytes still in flight to the peer.
        """
        if self._flushed or not self._open:
            return
        self._flushed = True
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._end()

    def _fail(self, error: RuntimeFault) -> None:
        """Tell the sink, but not from within one of its own calls."""
        if self._open:
            self._end()
            if not self._deaf:
                self._loop.call(self.sink.lost, self, error)

    def _end(self) -> None:
        if not self._open:
            return
        self._open = False
        self._want(0)
        self._queue.clear()
        self._sock.close()
