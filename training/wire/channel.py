"""A control connection: messages, and the bytes of a bundle, in checked frames.

The frames are those of `pcp.runtime.transport.frame`. The control protocol uses `DATA`
frames only: tag 1 carries a message, tag 2 a part of a blob at its offset.
Lengths are bounded by the framing before anything is allocated. A timeout
between two frames is a `Timeout`; inside one, or bytes that do not belong here,
end the connection. Where a run has a key, the proofs of it come first; whoever is
not let in is told why in a `REFUSE` frame.
"""

import socket
import threading
import time

from pcp.errors import PeerLost, ProtocolError, Timeout
from pcp.runtime.transport import frame as framing
from pcp.runtime.transport.authentication import Gate
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.frame import (
    MAX_TEXT,
    Frame,
    Header,
    Kind,
    text,
    text_payload,
)
from pcp.runtime.transport.link import Untrusted, Wire, format_address
from pcp.training.wire.messages import Message, decode, encode
from pcp.training.wire.nonblocking_socket import Duplex

MESSAGE = 1
BLOB = 2
_PART = 1 << 20
MAX_BLOB = 8 << 30

OPEN = Protection()
"""No key and no certificates: whoever reaches it may talk to it."""

# A peer that takes longer for the rest of a frame than this is as good as gone.
FRAME_SECONDS = 20.0


class NotAdmitted(ProtocolError):
    """The other end let us know that it will not talk to us."""


class Channel:
    """One end of a control connection. Sending is safe from any thread.

    With a `gate`, the dialler must pass it before its messages are read.
    """

    def __init__(self, sock: Wire, gate: Gate | None = None) -> None:
        self._socket = sock
        self._wire = Duplex(sock)
        self._gate = gate
        self._sending = threading.Lock()
        self.peer = _name(sock)
        self.here: str = sock.getsockname()[0]
        """Our own address, as the peer reaches it."""

    def send(self, message: Message, timeout: float = FRAME_SECONDS) -> None:
        """Send one message, or raise `PeerLost`."""
        self._send(MESSAGE, 0, encode(message), timeout)

    def send_blob(self, content: bytes, timeout: float = FRAME_SECONDS) -> None:
        """Send bytes that `receive_blob` of the same length takes."""
        for at in range(0, len(content), _PART):
            self._send(BLOB, at, content[at : at + _PART], timeout)

    def receive(self, timeout: float) -> Message:
        """The next message.

        `Timeout` when none begins in time, `PeerLost` when the peer is gone,
        `ProtocolError` for anything that is no message.
        """
        tag, _, payload = self._receive(timeout)
        if tag != MESSAGE:
            raise ProtocolError(f"{self.peer}: a frame of tag {tag} for a message")
        return decode(payload)

    def receive_blob(self, length: int, timeout: float) -> bytes:
        """The `length` bytes the peer announced."""
        if length > MAX_BLOB:
            raise ProtocolError(f"{self.peer} announces {length} bytes")
        parts: list[bytes] = []
        done = 0
        while done < length:
            tag, offset, payload = self._receive(timeout)
            if tag != BLOB or offset != done or done + len(payload) > length:
                raise ProtocolError(f"{self.peer}: a part of a blob out of place")
            parts.append(payload)
            done += len(payload)
        return b"".join(parts)

    def admit(self, timeout: float) -> None:
        """Wait until the dialler has passed the gate, if there is one.

        `NotAdmitted` when it does not; it was told why.
        """
        deadline = time.monotonic() + timeout
        while self._gate is not None and not self._gate.open:
            header = self._header(max(1e-3, deadline - time.monotonic()))
            self._hear_proof(self._gate, header)

    def close(self) -> None:
        """End the connection; a thread blocked in `receive` gets `PeerLost`."""
        try:
            self._wire.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was faster
        self._wire.close()

    def _send(self, tag: int, offset: int, payload: bytes, timeout: float) -> None:
        frame = Frame(Kind.DATA, tag=tag, offset=offset, payload=payload)
        self._send_frame(frame, timeout)

    def _send_frame(self, frame: Frame, timeout: float = FRAME_SECONDS) -> None:
        content = framing.pack_header(frame, epoch=0) + bytes(frame.payload)
        with self._sending:
            try:
                self._wire.sendall(memoryview(content), time.monotonic() + timeout)
            except TimeoutError as error:
                raise PeerLost(f"{self.peer} takes nothing any more") from error
            except OSError as error:
                raise PeerLost(f"{self.peer}: connection lost: {error}") from error

    def _receive(self, timeout: float) -> tuple[int, int, bytes]:
        header = self._header(timeout)
        if header.kind is Kind.REFUSE and header.length <= MAX_TEXT:
            raise NotAdmitted(text(memoryview(self._payload(header))))
        if header.kind in (Kind.AUTH, Kind.PROOF) and self._gate is not None:
            self._hear_proof(self._gate, header)  # nobody asked for one: it raises
        if header.kind is not Kind.DATA:
            raise ProtocolError(f"{self.peer}: a {header.kind.name} frame here")
        return header.tag, header.offset, self._payload(header)

    def _hear_proof(self, gate: Gate, header: Header) -> None:
        """A frame of a dialler that has not passed the gate; NotAdmitted."""
        try:
            if not gate.room(header.kind, header.length):
                gate.hear(header.kind, b"")  # says what is wrong with it
            answer = gate.hear(header.kind, self._payload(header))
        except ProtocolError as error:
            self._send_frame(Frame(Kind.REFUSE, payload=text_payload(str(error))))
            raise NotAdmitted(f"{self.peer} is not let in: {error}") from error
        if answer is not None:
            self._send_frame(answer)

    def _header(self, timeout: float) -> Header:
        return framing.unpack_header(self._exactly(framing.HEADER_BYTES, timeout))

    def _payload(self, header: Header) -> bytes:
        payload = self._exactly(header.length, FRAME_SECONDS, begun=True)
        framing.verify_payload(header, payload)
        return payload

    def _exactly(self, count: int, timeout: float, begun: bool = False) -> bytes:
        buffer = bytearray(count)
        view, done = memoryview(buffer), 0
        deadline = time.monotonic() + timeout
        while done < count:
            try:
                got = self._wire.recv_into(view[done:], deadline)
            except TimeoutError as error:
                if done or begun:
                    raise PeerLost(f"{self.peer} stopped inside a frame") from error
                raise Timeout(f"nothing from {self.peer} in {timeout:g} s") from error
            except Untrusted as error:
                raise NotAdmitted(f"{self.peer}: {error}") from error
            except OSError as error:
                raise PeerLost(f"{self.peer}: connection lost: {error}") from error
            if not got:
                raise PeerLost(f"{self.peer} closed the connection")
            done += got
            if not begun:
                begun, deadline = True, time.monotonic() + FRAME_SECONDS
        return bytes(buffer)


def connect(
    host: str, port: int, timeout: float, protection: Protection = OPEN
) -> Channel:
    """Dial a shepherd.

    `PeerLost` if nobody answers there, `NotAdmitted` if it asks for a key or a
    certificate that is not ours, or we for one that it has not.
    """
    address = format_address(host, port)
    try:
        return Channel(protection.dial(address, timeout))
    except (PeerLost, Timeout) as error:
        raise PeerLost(f"no shepherd at {host}:{port}: {error}") from error
    except ProtocolError as error:
        raise NotAdmitted(f"the shepherd at {address}: {error}") from error


def split_address(address: str) -> tuple[str, int]:
    """`HOST:PORT` (or `[V6]:PORT`) as its two parts; `ProtocolError` otherwise."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ProtocolError(f"{address!r} is no HOST:PORT")
    return host.strip("[]"), int(port)


def _name(sock: Wire) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "a peer that left"
    return f"{host}:{port}"
