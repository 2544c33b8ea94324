"""Bulk data between processes of one machine through shared memory.

A `SharedLink` wraps the TCP link of two such members. Every frame still goes
over the connection, in order; but a large payload is copied into a slot of
memory that both have mapped, and the frame only says in which. The receiver
copies it out and grants the slot back:

    sender                        connection                    receiver
    first large payload   ──SHARE {pid, fd, nonce}──►   maps it, read-only
                          ◄──GRANT slot────────────     for every slot
    payload into a slot   ──SHARED slot, length─────►   payload out of the slot
                          ◄──GRANT slot────────────

Until slots are granted payloads travel as DATA. A peer that cannot map the memory
(another machine behind the same address, another user, no /proc) grants no slot, and
all payloads stay DATA. The memory has no name: it is freed when both processes have
ended, in whatever way. It is sealed against shrinking, so that no peer can take mapped
pages away from the reader.
"""

import os
import struct
from collections import deque
from dataclasses import replace
from typing import Any

from pcp.errors import ProtocolError, RuntimeFault
from pcp.runtime.memory.shared_segment import SMALLEST, Segment
from pcp.runtime.transport.frame import Frame, Header, Kind, json_payload, parse_json
from pcp.runtime.transport.link import Link
from pcp.runtime.transport.tcp import TcpLink

SLOT_BYTES = 512 << 10
SLOTS = 8
_SIZE = SLOTS * SLOT_BYTES
_PLACE = struct.Struct(">II")
_OWN = frozenset({Kind.SHARE, Kind.GRANT, Kind.SHARED})
"""The frames that end in this link: its sink does not get them."""


class Slots:
    """The slots of one direction, as the writer or the reader has mapped them."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._view = segment.octets.data

    @classmethod
    def create(cls) -> "tuple[Slots, dict[str, Any]]":
        """New memory, and the offer that lets a peer map it. Raises OSError."""
        segment = Segment.create(_SIZE)
        return cls(segment), segment.offer

    @classmethod
    def map(cls, offer: dict[str, Any]) -> "Slots | None":
        """The memory of an offer, or None when it cannot be reached from here."""
        segment = Segment.map(offer, _SIZE, _SIZE)
        return None if segment is None else cls(segment)

    def __getitem__(self, slot: int) -> memoryview:
        return self._view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]

    def close(self) -> None:
        """Unmap it here."""
        self._view.release()
        self._segment.close()


class SharedLink:
    """A link whose large payloads go through memory; see `link.Link`."""

    def __init__(self, tcp: TcpLink) -> None:
        self.sink = tcp.sink
        self._tcp = tcp
        self._waiting: deque[Frame] = deque()
        self._out: Slots | None = None
        self._in: Slots | None = None
        self._free: list[int] = []
        self._granted = False
        self._offered = False
        self._moved = [0, 0]
        tcp.sink = self

    # Facts of the connection.

    @property
    def label(self) -> str:
        """The peer's name, for messages."""
        return self._tcp.label

    @property
    def epoch(self) -> int:
        """The epoch of both directions."""
        return self._tcp.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._tcp.epoch = epoch

    @property
    def last_heard(self) -> float:
        """Monotonic time of the last byte from the connection."""
        return self._tcp.last_heard

    @last_heard.setter
    def last_heard(self, when: float) -> None:
        self._tcp.last_heard = when

    @property
    def last_sent(self) -> float:
        """Monotonic time of the last byte that the connection took."""
        return self._tcp.last_sent

    @property
    def bytes_sent(self) -> int:
        """Bytes over the connection and through memory."""
        return self._tcp.bytes_sent + self._moved[0]

    @property
    def bytes_received(self) -> int:
        """Bytes from the connection and from memory."""
        return self._tcp.bytes_received + self._moved[1]

    @property
    def round_trip(self) -> float:
        """None that counts: both ends are on this machine."""
        return 0.0

    @property
    def alive(self) -> bool:
        """Whether the connection is open."""
        return self._tcp.alive

    def count_moved(self, sent: int, received: int) -> None:
        """Bytes went through other memory than the slots (`shared_scratch`)."""
        self._moved[0] += sent
        self._moved[1] += received

    # Sending.

    def send(self, frame: Frame) -> None:
        """Queue a frame; large payloads wait for a slot."""
        if self._waiting:
            self._waiting.append(frame)
        elif frame.kind is not Kind.DATA:
            self._tcp.send(frame)
        else:
            self._waiting.append(frame)
            self._advance()

    def recall(self, tag: int, seq: int) -> None:
        """Drop an operation's data that is in no slot yet."""
        self._waiting = deque(
            frame
            for frame in self._waiting
            if frame.kind is not Kind.DATA or (frame.tag, frame.seq) != (tag, seq)
        )
        self._tcp.recall(tag, seq)

    def exhaust(self) -> None:
        """Deliver the frames that have arrived, payloads in slots too."""
        self._tcp.exhaust()

    def close(self, *, flush: float = 0.0) -> None:
        """Send the frames that need no more slots, then end the connection."""
        self._flush_waiting()
        self._tcp.close(flush=flush)
        self._unmap()

    def sever(self) -> None:
        """End the connection like a crash."""
        self._waiting.clear()
        self._tcp.sever()
        self._unmap()

    def _advance(self) -> None:
        """Send waiting frames, as far as there are slots."""
        while self._waiting:
            frame = self._waiting[0]
            if not self._fits(frame):
                self._waiting.popleft()
                self._tcp.send(frame)
            elif self._free:
                self._waiting.popleft()
                self._send_shared(frame, self._free.pop())
            else:
                return

    def _fits(self, frame: Frame) -> bool:
        """Whether the payload is to go through memory."""
        size = memoryview(frame.payload).nbytes if frame.kind is Kind.DATA else 0
        if not SMALLEST <= size <= SLOT_BYTES or frame.checksum is not None:
            return False
        if not self._offered:
            self._offer()
        return self._granted

    def _send_shared(self, frame: Frame, slot: int) -> None:
        assert self._out is not None, "a slot was granted"
        payload = memoryview(frame.payload).cast("B")
        self._out[slot][: len(payload)] = payload
        self._moved[0] += len(payload)
        place = _PLACE.pack(slot, len(payload))
        self._tcp.send(
            Frame(Kind.SHARED, frame.tag, frame.seq, frame.step, frame.offset, place)
        )
        if frame.on_sent is not None:
            frame.on_sent()

    def _offer(self) -> None:
        self._offered = True
        try:
            self._out, offer = Slots.create()
        except (OSError, AttributeError):
            return  # a system without such memory: the connection carries all payloads
        self._tcp.send(Frame(Kind.SHARE, payload=json_payload(offer)))

    def _flush_waiting(self) -> None:
        """Send the waiting frames over the connection: no slot comes any more."""
        waiting, self._waiting = self._waiting, deque()
        for frame in waiting:
            self._tcp.send(frame)

    def _unmap(self) -> None:
        for slots in (self._out, self._in):
            if slots is not None:
                slots.close()
        self._out = self._in = None
        self._free.clear()
        self._granted = False

    # Receiving: the connection's sink.

    def place(self, link: Link, header: Header) -> memoryview:
        """Room for a payload."""
        if header.kind not in _OWN:
            return self.sink.place(self, header)
        if header.kind is Kind.SHARED and header.length == _PLACE.size:
            return memoryview(bytearray(_PLACE.size))
        if header.kind is Kind.SHARE and header.length <= 1024:
            return memoryview(bytearray(header.length))
        raise ProtocolError(f"{self.label} sent a {header.kind.name} too long")

    def deliver(self, link: Link, header: Header, payload: memoryview) -> None:
        """Take a frame; those about memory end here."""
        if header.kind not in _OWN:
            self.sink.deliver(self, header, payload)
            return
        match header.kind:
            case Kind.SHARE:
                self._map(parse_json(payload))
            case Kind.GRANT:
                self._grant(header.step)
            case Kind.SHARED if not header.length:
                raise ProtocolError(f"{self.label} sent a SHARED that names no slot")
            case Kind.SHARED:
                self._take(header, *_PLACE.unpack(payload))

    def lost(self, link: Link, error: RuntimeFault) -> None:
        """Tell the sink that the connection is gone."""
        self._waiting.clear()
        self._unmap()
        self.sink.lost(self, error)

    def _map(self, offer: dict[str, Any]) -> None:
        if self._in is not None:
            raise ProtocolError(f"{self.label} offers memory a second time")
        self._in = Slots.map(offer)
        for slot in range(SLOTS if self._in is not None else 0):
            self._tcp.send(Frame(Kind.GRANT, step=slot))

    def _grant(self, slot: int) -> None:
        if self._out is None or slot >= SLOTS or slot in self._free:
            raise ProtocolError(f"{self.label} granted slot {slot}, which it has not")
        self._granted = True
        self._free.append(slot)
        self._advance()

    def _take(self, header: Header, slot: int, length: int) -> None:
        if self._in is None or slot >= SLOTS or not SMALLEST <= length <= SLOT_BYTES:
            raise ProtocolError(f"{self.label} sent {length} bytes in slot {slot}")
        data = replace(header, kind=Kind.DATA, length=length)
        room = self.sink.place(self, data)
        room[:] = self._in[slot][:length]
        self._moved[1] += length
        self._tcp.send(Frame(Kind.GRANT, step=slot))
        self.sink.deliver(self, data, room)
        # A free slot is sent at once: at the end of the turn the two ends would work by
        # turns.
        self._tcp.flush()


def shared(link: TcpLink) -> Link:
    """`link`, through memory where both ends seem to be on this machine."""
    if not hasattr(os, "memfd_create") or not link.local:
        return link
    return SharedLink(link)
