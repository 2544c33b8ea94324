"""One link over several connections, for networks with long round trips.

A connection carries at most its window per round trip, and halves the window
with every loss; several carry several times that. A `StripedLink` has streams:
the first brings every frame's header and all small payloads, in order; a large
payload goes over the first other stream that can take it, so that no more of them
are used than the network has room for:

    sender                  first stream            a stream    receiver
    DATA, large    ──SHARED number, length──►
                   ──────────────payload as DATA number──►   kept until its turn
                   ◄──GRANT number──────────                 taken: that much
                                                             may follow

Frames are handed up in the order they were sent, although payloads overtake each
other. At most `WINDOW_BYTES` are sent and not granted, so a receiver never keeps more
than that. The loss of any stream is the loss of the link.
"""

import math
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pcp.errors import ProtocolError, RuntimeFault
from pcp.runtime.memory.shared_segment import SMALLEST
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.frame import Frame, Header, Kind
from pcp.runtime.transport.link import (
    Link,
    Wire,
    endures_loss,
    round_trip,
    window,
)
from pcp.runtime.transport.stream_controller import StreamController
from pcp.runtime.transport.tcp import TcpLink
from pcp.wire import FAR_SECONDS

WINDOW_BYTES = 32 << 20
"""2.5 Gbit/s at a round trip of 100 ms."""
AHEAD_BYTES = 1 << 20
"""The most bytes queued on one stream, which they cannot leave any more."""
_FILLED = 1e9 / 8
"""The rate that the streams of a link fill to begin with, bytes per second."""
MAX_STREAMS = 16
Streams = int | Literal["auto"]
"""Streams to each peer; auto follows from the kernel's round trip time."""
_MAX_BEHIND = 64 << 20
_MAX_TURN = 1 << 16
"""Bytes and frames that may wait behind a payload that is still missing."""
_NUMBERS = 1 << 32
_PLACE = struct.Struct(">II")
_Waiting = tuple[Header, memoryview | None, int]


def streams_for(round_trip: float, window: int, steady: bool) -> int:
    """How many streams to a peer at this round trip time (s).

    One, if it is near, or if `window` bytes under way fill `_FILLED` and losses do
    not narrow that (`steady`). Otherwise as many streams as fill it, and the first;
    streams for which a slower network has no room stay idle.
    """
    streams = math.ceil(round_trip * _FILLED / max(1, window))
    if round_trip < FAR_SECONDS or (streams <= 1 and steady):
        return 1
    return 1 + max(2 if steady else 4, min(MAX_STREAMS - 1, streams))


def streams_over(sock: Wire) -> int:
    """`streams_for` as the kernel knows this connection to the peer."""
    return streams_for(round_trip(sock), window(sock), endures_loss(sock))


def with_reserve(streams: int) -> int:
    """How many streams are opened where so many are used at first.

    The others are in reserve for the `stream_controller`.
    """
    return 1 if streams == 1 else min(MAX_STREAMS, 2 * streams - 1)


class StripedLink:
    """A link over the `streams`, at least two; see `link.Link`.

    Besides the first stream, `used` of them are used at the beginning; None: all.
    """

    def __init__(
        self, loop: Loop, streams: Sequence[TcpLink], used: int | None = None
    ) -> None:
        self.sink = streams[0].sink
        self._loop = loop
        self._first, *self._others = streams
        self._queue: deque[Frame] = deque()
        self._sent: dict[int, tuple[int, float]] = {}
        count = len(self._others)
        self._use = StreamController(count if used is None else used, count)
        self._load = dict.fromkeys(self._others, 0)
        self._next = 0
        self._turn: deque[_Waiting] = deque()
        self._arrived: dict[int, memoryview] = {}
        self._kept = self._behind = self._under_way = 0
        self._lost = self._woken = False
        for stream in streams:
            stream.sink = self

    # Facts of the streams.

    @property
    def label(self) -> str:
        """The peer's name, for messages."""
        return self._first.label

    @property
    def epoch(self) -> int:
        """The epoch of all streams."""
        return self._first.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        for stream in self._all:
            stream.epoch = epoch

    @property
    def last_heard(self) -> float:
        """Monotonic time of the last byte from any stream."""
        return max(stream.last_heard for stream in self._all)

    @last_heard.setter
    def last_heard(self, when: float) -> None:
        for stream in self._all:
            stream.last_heard = when

    @property
    def last_sent(self) -> float:
        """Monotonic time of the last byte that the first stream took."""
        return self._first.last_sent

    @property
    def bytes_sent(self) -> int:
        """Bytes sent over all streams."""
        return sum(stream.bytes_sent for stream in self._all)

    @property
    def bytes_received(self) -> int:
        """Bytes received from all streams."""
        return sum(stream.bytes_received for stream in self._all)

    @property
    def round_trip(self) -> float:
        """The round trip (s) of the first stream."""
        return self._first.round_trip

    @property
    def alive(self) -> bool:
        """Whether the first stream is open."""
        return self._first.alive

    @property
    def _all(self) -> list[TcpLink]:
        return [self._first, *self._others]

    # Sending.

    def send(self, frame: Frame) -> None:
        """Queue a frame; large payloads wait until the window has room."""
        self._queue.append(frame)
        self._advance()

    def recall(self, tag: int, seq: int) -> None:
        """Drop an operation's data that no stream has yet; streams have copies."""
        self._queue = deque(
            frame
            for frame in self._queue
            if frame.kind is not Kind.DATA or (frame.tag, frame.seq) != (tag, seq)
        )
        self._first.recall(tag, seq)
        self._advance()

    def exhaust(self) -> None:
        """Deliver the frames that have arrived over all streams and have their turn."""
        for stream in self._all:
            stream.exhaust()

    def close(self, *, flush: float = 0.0) -> None:
        """Send queued frames but data over the first stream, then end all streams.

        The other streams outlive the first: a peer must not see one end before it has
        read the BYE.
        """
        queue, self._queue = self._queue, deque()
        for frame in queue:
            if frame.kind is not Kind.DATA:
                self._first.send(frame)
        self._first.close(flush=flush)
        if flush > 0:
            self._loop.later(flush, self.sever)
        else:
            self.sever()

    def sever(self) -> None:
        """End all streams like a crash."""
        for kept in (self._queue, self._turn, self._arrived):
            kept.clear()
        for stream in self._all:
            stream.sever()

    def _advance(self) -> None:
        while self._queue:
            frame = self._queue[0]
            size = memoryview(frame.payload).nbytes
            if not self._striped(frame, size):
                self._queue.popleft()
                self._first.send(frame)
            else:
                stream = self._free_stream()
                if stream is None or self._under_way + size > WINDOW_BYTES:
                    self._use.full()
                    return
                self._queue.popleft()
                self._stripe(frame, size, stream)
        self._use.rest()

    def _free_stream(self) -> TcpLink | None:
        """The first idle stream, or the first with room in its queue."""
        used = self._others[: self._use.used]
        idle = (stream for stream in used if not self._load[stream])
        ready = (stream for stream in used if self._load[stream] < AHEAD_BYTES)
        return next(idle, None) or next(ready, None)

    def _striped(self, frame: Frame, size: int) -> bool:
        """Whether a further stream carries it: large data, and data behind such."""
        return frame.kind is Kind.DATA and (size >= SMALLEST or bool(self._sent))

    def _stripe(self, frame: Frame, size: int, stream: TcpLink) -> None:
        """Announce a payload and send a copy: the caller's memory is free at once."""
        number, self._next = self._next, (self._next + 1) % _NUMBERS
        self._sent[number] = size, self._use.now()
        self._under_way += size
        self._load[stream] += size
        place = _PLACE.pack(number, size)
        self._first.send(
            Frame(Kind.SHARED, frame.tag, frame.seq, frame.step, frame.offset, place)
        )
        payload = bytes(memoryview(frame.payload).cast("B"))
        stream.send(
            Frame(
                Kind.DATA,
                seq=number,
                payload=payload,
                on_sent=lambda: self._taken(stream, size),
                checksum=frame.checksum,
            )
        )
        if frame.on_sent is not None:
            frame.on_sent()

    def _granted(self, number: int) -> None:
        sent = self._sent.pop(number, None)
        if sent is None:
            raise ProtocolError(f"{self.label} grants {number}, which was not sent")
        size, when = sent
        self._under_way -= size
        self._use.acknowledged(size, when)
        self._advance()

    def _taken(self, stream: TcpLink, size: int) -> None:
        """Note that the kernel has a payload; its stream has room for more."""
        self._load[stream] -= size
        if self._queue and not self._woken:
            self._woken = True
            self._loop.call(self._wake)

    def _wake(self) -> None:
        self._woken = False
        if not self._lost:
            self._advance()

    # Receiving: the sink of the streams.

    def place(self, link: Link, header: Header) -> memoryview:
        """Room for a payload; data is kept here until its turn."""
        if link is not self._first:
            return self._place_stripe(header)
        if header.kind is Kind.SHARED and header.length == _PLACE.size:
            return memoryview(bytearray(_PLACE.size))
        if header.kind is Kind.DATA and header.length < SMALLEST:
            self._keep(header.length)
            return memoryview(bytearray(header.length))
        if header.kind in (Kind.SHARED, Kind.DATA):
            raise ProtocolError(f"{self.label} sent a {header.kind.name} too long")
        self._behind += header.length
        if self._behind > _MAX_BEHIND:
            raise ProtocolError(f"{self.label} never sent what it announced")
        return self.sink.place(self, header)

    def deliver(self, link: Link, header: Header, payload: memoryview) -> None:
        """Take a frame or a payload; hand up the frames that have their turn."""
        if link is not self._first:
            if header.kind is not Kind.DATA or not header.length:
                raise ProtocolError(
                    f"{self.label} sent a {header.kind.name} in a stream"
                )
            self._arrived[header.seq] = payload
        elif header.kind is Kind.GRANT:
            self._granted(header.step)
        elif header.kind is Kind.SHARED:
            self._announced(header, payload)
        else:
            self._turn.append((header, payload, -1))
        self._hand_up()
        if len(self._turn) > _MAX_TURN:
            raise ProtocolError(f"{self.label} never sent what it announced")

    def lost(self, link: Link, error: RuntimeFault) -> None:
        """Sever all streams, since one is gone."""
        if not self._lost:
            self._lost = True
            self.sever()
            self.sink.lost(self, error)

    def _place_stripe(self, header: Header) -> memoryview:
        if header.kind is not Kind.DATA:
            raise ProtocolError(f"{self.label} sent a {header.kind.name} in a stream")
        if header.seq in self._arrived:
            raise ProtocolError(f"{self.label} sent payload {header.seq} twice")
        self._keep(header.length)
        return memoryview(bytearray(header.length))

    def _keep(self, length: int) -> None:
        self._kept += length
        if self._kept > WINDOW_BYTES:
            raise ProtocolError(f"{self.label} sends more than its window")

    def _announced(self, header: Header, payload: memoryview) -> None:
        if header.length != _PLACE.size:
            raise ProtocolError(f"{self.label} sent a SHARED that names no payload")
        number, length = _PLACE.unpack(payload)
        data = replace(header, kind=Kind.DATA, length=length)
        self._turn.append((data, None, number))

    def _hand_up(self) -> None:
        while self._turn:
            header, payload, number = self._turn[0]
            if payload is None:
                payload = self._arrived.pop(number, None)
                if payload is None:
                    return
            self._turn.popleft()
            if header.kind is Kind.DATA:
                self._hand_up_data(header, payload, number)
            else:
                self._behind -= header.length
                self.sink.deliver(self, header, payload)

    def _hand_up_data(self, header: Header, payload: memoryview, number: int) -> None:
        if len(payload) != header.length:
            raise ProtocolError(f"{self.label} announced {header.length} bytes")
        self._kept -= len(payload)
        if not header.length:
            self.sink.deliver(self, header, payload)
            return
        room = self.sink.place(self, header)
        room[:] = payload
        if number >= 0:
            self._first.send(Frame(Kind.GRANT, step=number))
        self.sink.deliver(self, header, room)
