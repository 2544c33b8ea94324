"""Frames over a TCP connection, without blocking and without copying.

Payloads go from the caller's memory to the kernel (`sendmsg`) and from the
kernel into the memory the sink chose (`recv_into`).
"""

import selectors
import socket
import time
from collections import deque

from pcp.errors import PeerLost, ProtocolError, RuntimeFault
from pcp.runtime.transport import unix_socket
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.frame import (
    HEADER_BYTES,
    Frame,
    Header,
    Kind,
    pack_header,
    text_payload,
    unpack_header,
    verify_payload,
)
from pcp.runtime.transport.link import FAR_SECONDS, Sink, Wire, round_trip, translate

_NOTHING = memoryview(b"")
_WASTE = memoryview(bytearray(256 << 10))
"""Room for bytes that are thrown away, in as few calls as possible."""
_TURN_BYTES = 4 << 20
"""At most this much is read from one peer before the others get a turn."""
_ALL_BYTES = 64 << 20
"""More bytes than a kernel keeps for the reader of one connection."""
_AT_ONCE = 4 << 10
"""Payloads from this size on are sent at once, without waiting for more frames."""
_GATHER_BYTES = 512 << 10
_AHEAD_BYTES = 4 << 10
_GATHER_VIEWS = 32
"""One system call sends frames until one of these is reached."""


class _Outgoing:
    """A frame in the queue, and how much of it is still to send."""

    __slots__ = ("epoch", "frame", "started", "views")

    def __init__(self, frame: Frame, epoch: int) -> None:
        self.frame = frame
        self.epoch = epoch
        self.started = False
        self.views: list[memoryview] = []

    def pack(self) -> list[memoryview]:
        """The bytes to send, checksummed only now: they are then in the cache."""
        if not self.started:
            self.started = True
            self.views = [memoryview(pack_header(self.frame, self.epoch))]
            if len(self.frame.payload):
                self.views.append(memoryview(self.frame.payload).cast("B"))
        return self.views

    def advance(self, count: int) -> int:
        """Take `count` sent bytes off; the number that belongs to the next frame."""
        while self.views and count >= len(self.views[0]):
            count -= len(self.views.pop(0))
        if self.views and count:
            self.views[0] = self.views[0][count:]
            count = 0
        return count

    def detach(self) -> None:
        """Copy the rest of the bytes: the sender's buffer may change now."""
        self.views = [memoryview(bytes(view)) for view in self.views]
        self.frame.on_sent = None


class TcpLink:
    """A link over a connected socket; see `link.Link`."""

    def __init__(
        self, loop: Loop, sock: Wire, sink: Sink, label: str, epoch: int = 0
    ) -> None:
        self.label = label
        self.epoch = epoch
        self.sink = sink
        self.last_heard = self.last_sent = time.monotonic()
        self.bytes_sent = self.bytes_received = 0
        self._loop = loop
        self._sock = sock
        self._buffered = getattr(sock, "buffered", None)
        self._queue: deque[_Outgoing] = deque()
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._incoming: Header | None = None
        self._view = self._payload = self._header
        self._fill = 0
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

    def send(self, frame: Frame) -> None:
        """Queue a frame and send as much as the kernel takes.

        Small frames wait for the end of the loop's turn unless they are urgent: each
        system call wakes the peer, which costs more than the bytes do.
        """
        if not self._open or self._leaving or self._mute is not None:
            return
        self._queue.append(_Outgoing(frame, self.epoch))
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
        kept: deque[_Outgoing] = deque()
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

    @property
    def alive(self) -> bool:
        """Whether the socket is still open."""
        return self._open

    @property
    def local(self) -> bool:
        """Whether both ends have the same address: one machine, most likely."""
        if unix_socket.carries(self._sock):
            return True
        try:
            return self._sock.getpeername()[0] == self._sock.getsockname()[0]
        except OSError:
            return False  # gone already; the next read reports it

    @property
    def distant(self) -> bool:
        """Whether a message takes longer than copying what it announces."""
        return round_trip(self._sock) >= FAR_SECONDS

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
        if self._writing:  # called from an `on_sent`: the loop below goes on
            return
        self._writing = True
        try:
            self._write()
        finally:
            self._writing = False

    def _write(self) -> None:
        while self._queue and self._open:
            views = self._next_views()
            try:
                count = self._sock.sendmsg(views)
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

    def _next_views(self) -> list[memoryview]:
        """The bytes for one system call: a few frames, not too many bytes."""
        views: list[memoryview] = []
        size = 0
        for out in self._queue:
            views += out.pack()
            size += len(out.frame.payload)
            if size >= _GATHER_BYTES or len(views) >= _GATHER_VIEWS:
                break
        return views

    def _sent(self, count: int) -> None:
        self.bytes_sent += count
        self.last_sent = time.monotonic()
        while self._queue:
            out = self._queue[0]
            count = out.advance(count)
            if out.views or not out.started:
                return
            self._queue.popleft()
            if out.frame.on_sent is not None:
                out.frame.on_sent()

    def _lose_voice(self, error: RuntimeFault) -> None:
        """Stop sending; frames that have arrived are still read.

        The peer may have voted and died: the error of a send must not hide the vote.
        """
        self._mute = error
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
            room = self._room()
            try:
                count = self._sock.recv_into(room)
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
            self.last_heard = time.monotonic()
            self.bytes_received += count
            budget -= count
            if self._deaf:
                continue
            try:
                self._received(room, count)
            except RuntimeFault as fault:
                self.refuse(str(fault))
                self._loop.call(self.sink.lost, self, fault)
            if count < len(room) and self._announced and budget <= _TURN_BYTES:
                return  # the kernel has no more, and says so when it has

    @property
    def _announced(self) -> bool:
        """Whether the selector will report all bytes that are still to be read."""
        return self._buffered is None and self._mute is None

    def _read_on(self) -> None:
        if self._open:
            self._readable()

    def _room(self) -> memoryview:
        """Memory for the next bytes: small frames are read several at a time."""
        if self._deaf:
            return _WASTE
        room = self._view[self._fill :]
        return self._ahead if len(room) < len(self._ahead) else room

    def _received(self, room: memoryview, count: int) -> None:
        if room is not self._ahead:
            self._fill += count
            if self._fill == len(self._view):
                self._complete()
            return
        data = room[:count]
        while len(data) and self._open and not self._deaf:
            part = data[: len(self._view) - self._fill]
            self._view[self._fill : self._fill + len(part)] = part
            self._fill += len(part)
            data = data[len(part) :]
            if self._fill == len(self._view):
                self._complete()

    def _complete(self) -> None:
        """Handle a whole header or payload."""
        header, self._fill = self._incoming, 0
        if header is None:
            header = unpack_header(self._header)
            if header.epoch != self.epoch:
                raise ProtocolError(
                    f"{self.label} sent a frame of epoch {header.epoch} on a "
                    f"connection of epoch {self.epoch}"
                )
            if header.length:
                self._payload = self.sink.place(self, header)
                self._incoming, self._view = header, self._payload
                return
            self.sink.deliver(self, header, _NOTHING)
            return
        payload, self._payload = self._payload, self._header
        self._incoming, self._view = None, self._header
        verify_payload(header, payload)
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
