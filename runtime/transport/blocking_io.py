"""Whole frames over one connection, for threads that wait: handshakes, state, control.

Groups use `tcp.TcpLink` instead, in the loop's thread. One thread may read here while
others write: OpenSSL's state must not be used by two threads at once, and a socket's
own timeout belongs to both directions. So the wire never blocks: a thread without data
or room releases it, and waits for the descriptor.
"""

import errno
import math
import select
import threading
import time
from dataclasses import dataclass
from typing import Protocol, Self

from pcp.errors import PeerLost, ProtocolError, Timeout
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
from pcp.runtime.transport.link import NotAdmitted, Wire, os_errors, unanswered

SEND_SECONDS = 20.0
"""A peer that takes longer for one frame counts as lost."""


@dataclass(frozen=True)
class ReadLimits:
    """How long a reader waits: a deadline (monotonic), and seconds without a byte."""

    deadline: float
    silence: float = math.inf
    frame: float | None = None
    """Seconds in which a frame that has begun is whole, whatever the deadline."""

    def until(self, began: float | None) -> float:
        """The limit for the next byte, in a frame that `began` then (None: not yet)."""
        end = self.deadline
        if began is not None and self.frame is not None:
            end = began + self.frame
        return min(end, time.monotonic() + self.silence)


class Admission(Protocol):
    """Admits or refuses a dialler by its first frames (`authentication.Gate`)."""

    open: bool
    """Whether the dialler is admitted."""

    def room(self, kind: Kind, length: int) -> bool:
        """Whether a frame of this kind and length is one of the proof's."""
        ...

    def hear(self, kind: Kind, payload: bytes) -> Frame | None:
        """The answer to a frame of the proof, or ProtocolError."""
        ...


class BlockingConnection:
    """One end of a connection, with blocking calls.

    Every wait has a deadline, every payload a bound and a checksum.

    With a `gate` the dialler must pass it (`admit`) before anything else is read.
    """

    def __init__(self, wire: Wire, peer: str, gate: Admission | None = None) -> None:
        wire.setblocking(False)
        self.wire = wire
        self.peer = peer
        self._gate = gate
        self._using = threading.Lock()
        self._sending = threading.Lock()

    # Sending.

    def send(self, frame: Frame, timeout: float = SEND_SECONDS) -> None:
        """Send a frame whole, from any thread; PeerLost when nothing takes it."""
        views = [memoryview(pack_header(frame, 0)), memoryview(frame.payload)]
        with self._sending:
            try:
                with os_errors(self.peer, "sending"):
                    self._send_all(views, time.monotonic() + timeout)
            except Timeout as error:
                raise PeerLost(f"{self.peer} takes nothing any more") from error

    # Receiving, by one thread at a time.

    def receive(self, patience: ReadLimits, limit: int) -> tuple[Header, memoryview]:
        """The next frame, whose payload may have `limit` bytes."""
        header = self.header(patience)
        if header.length > limit:
            raise ProtocolError(
                f"{self.peer} announces {header.length} bytes; {limit} allowed"
            )
        payload = memoryview(bytearray(header.length))
        self.payload(patience, header, payload)
        return header, payload

    def answer(self, patience: ReadLimits, limit: int) -> tuple[Header, memoryview]:
        """The first frame of a peer; a peer that closes before may not speak pcp."""
        try:
            return self.receive(patience, limit)
        except PeerLost as error:
            raise unanswered(error) from error

    def header(self, patience: ReadLimits) -> Header:
        """The next frame's header."""
        room = memoryview(bytearray(HEADER_BYTES))
        self._fill(room, patience, None)
        return unpack_header(room)

    def payload(self, patience: ReadLimits, header: Header, room: memoryview) -> None:
        """A frame's payload into `room`, verified."""
        self._fill(room, patience, time.monotonic())
        if header.length:
            verify_payload(header, room)

    def ended(self, patience: ReadLimits) -> None:
        """Wait until the peer closes its end, or sends a byte."""
        with os_errors(self.peer, "closing"):
            self._receive_into(memoryview(bytearray(1)), patience.until(None))

    # Admission.

    def admit(self, patience: ReadLimits) -> None:
        """Wait until the dialler has passed the gate, if there is one.

        NotAdmitted when it does not; a refusal has told the peer why.
        """
        while self._gate is not None and not self._gate.open:
            self.prove(self._gate, self.header(patience), patience)

    def check(self, header: Header, patience: ReadLimits) -> None:
        """NotAdmitted for proofs that come when the gate has long been passed."""
        if header.kind in (Kind.AUTH, Kind.PROOF) and self._gate is not None:
            self.prove(self._gate, header, patience)

    def prove(self, gate: Admission, header: Header, patience: ReadLimits) -> None:
        """Check and answer a frame of a dialler's proof."""
        room = memoryview(bytearray())
        try:
            if gate.room(header.kind, header.length):
                room = memoryview(bytearray(header.length))
                self.payload(patience, header, room)
            answer = gate.hear(header.kind, bytes(room))
        except ProtocolError as error:
            self.send(Frame(Kind.REFUSE, payload=text_payload(str(error))))
            raise NotAdmitted(f"{self.peer} is not let in: {error}") from error
        if answer is not None:
            self.send(answer)

    # Ending.

    def shutdown(self, how: int) -> None:
        """Shut a direction down; wakes the threads that wait. OSError."""
        with self._using:
            self.wire.shutdown(how)

    def close(self) -> None:
        """Close the wire."""
        with self._using:
            self.wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside.

    def _fill(
        self, view: memoryview, patience: ReadLimits, began: float | None
    ) -> None:
        """Fill `view`; `began` is when its frame began, None before its first byte."""
        done = 0
        while done < len(view):
            try:
                with os_errors(self.peer, "receiving"):
                    count = self._receive_into(view[done:], patience.until(began))
            except Timeout as error:
                if began is None or patience.frame is None:
                    raise
                raise PeerLost(f"{self.peer} stopped inside a frame") from error
            if not count:
                raise PeerLost(f"{self.peer} closed the connection")
            done += count
            began = began or time.monotonic()

    def _receive_into(self, room: memoryview, deadline: float) -> int:
        """Receive bytes into `room`; how many, 0 at the end."""
        while True:
            try:
                with self._using:
                    return self.wire.recv_into(room)
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)

    def _send_all(self, views: list[memoryview], deadline: float) -> None:
        while views:
            try:
                with self._using:
                    count = self.wire.sendmsg(views)
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
                continue
            while views and count >= len(views[0]):
                count -= len(views.pop(0))
            if count:
                views[0] = views[0][count:]

    def _wait(self, event: int, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        descriptor = self.wire.fileno()
        if descriptor < 0:
            raise OSError(errno.EBADF, "closed")
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(1.0, 1000 * left)):
            raise TimeoutError
