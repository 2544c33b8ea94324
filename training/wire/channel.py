"""A control connection: messages, and the bytes of a bundle, in checked frames.

The frames are those of `pcp.runtime.transport.frame`. The control protocol uses `DATA`
frames only: tag 1 carries a message, tag 2 a part of a blob at its offset. Lengths are
bounded by the framing before anything is allocated. A timeout between two frames is a
`Timeout`; inside one, or bytes that do not belong here, end the connection. Where a run
has a key, both ends prove it first; a `REFUSE` frame tells a peer why it is not
admitted.
"""

import socket
import time
from collections.abc import Callable

from pcp.errors import PeerLost, ProtocolError, Timeout
from pcp.runtime.transport.address import format_address
from pcp.runtime.transport.authentication import Gate
from pcp.runtime.transport.blocking_io import (
    SEND_SECONDS,
    BlockingConnection,
    ReadLimits,
)
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.frame import MAX_TEXT, Frame, Header, Kind, text
from pcp.runtime.transport.link import NotAdmitted, Wire, round_trip
from pcp.runtime.transport.peer_identity import PeerIdentity
from pcp.training.wire.message import (
    Message,
    encode,
)
from pcp.training.wire.messages import (
    decode,
)

SHEPHERD = "shepherd"
"""The role that certificates of shepherds have."""
MESSAGE = 1
BLOB = 2
_PART = 1 << 20
MAX_BLOB = 8 << 30

OPEN = Protection()
"""No key and no certificates: every peer that can connect is admitted."""

FRAME_SECONDS = SEND_SECONDS
"""A peer that takes longer for the rest of a frame counts as lost."""


class Channel:
    """One end of a control connection. Sending is safe from any thread.

    With a `gate`, messages are read after the dialler has passed it.
    """

    def __init__(
        self,
        sock: Wire,
        gate: Gate | None = None,
        decode: Callable[[bytes], Message] = decode,
    ) -> None:
        """`decode` makes a message of a payload, or raises `ProtocolError`."""
        self._decode = decode
        self.peer, self._wire = _name(sock), sock
        self._connection = BlockingConnection(sock, self.peer, gate)
        self.here: str = sock.getsockname()[0]
        """The address of this end, as the peer reaches it."""

    @property
    def identity(self) -> PeerIdentity | None:
        """The identity of the other end; None before its handshake, or without one."""
        return getattr(self._wire, "identity", None)

    @property
    def round_trip(self) -> float:
        """Seconds to the other end and back, as the kernel knows them; 0.0: unknown."""
        return round_trip(self._wire)

    def send(self, message: Message, timeout: float = FRAME_SECONDS) -> None:
        """Send one message, or raise `PeerLost`."""
        self._send(MESSAGE, 0, encode(message), timeout)

    def send_blob(self, content: bytes, timeout: float = FRAME_SECONDS) -> None:
        """Send bytes that `receive_blob` of the same length takes."""
        for at in range(0, len(content), _PART):
            self._send(BLOB, at, content[at : at + _PART], timeout)

    def receive(self, timeout: float) -> Message:
        """The next message.

        `Timeout` when no message begins in time, `PeerLost` when the peer is gone,
        `ProtocolError` for anything that is no message.
        """
        tag, _, payload = self._receive(timeout)
        if tag != MESSAGE:
            raise ProtocolError(f"{self.peer}: a frame of tag {tag} for a message")
        return self._decode(payload)

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

        `NotAdmitted` when it does not; a `REFUSE` frame has told the peer why.
        """
        self._connection.admit(_within(timeout))

    def finish(self) -> None:
        """Shut the sending half down; what the peer sends may still be read."""
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the peer was faster

    def close(self) -> None:
        """End the connection; a thread blocked in `receive` gets `PeerLost`."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was faster
        self._connection.close()

    def _send(self, tag: int, offset: int, payload: bytes, timeout: float) -> None:
        frame = Frame(Kind.DATA, tag=tag, offset=offset, payload=payload)
        try:
            self._connection.send(frame, timeout)
        except NotAdmitted as error:  # the reading thread handles it
            raise PeerLost(str(error)) from error

    def _receive(self, timeout: float) -> tuple[int, int, bytes]:
        connection, patience = self._connection, _within(timeout)
        header = connection.header(patience)
        connection.check(header, patience)
        if header.kind is Kind.REFUSE and header.length <= MAX_TEXT:
            raise NotAdmitted(text(self._payload(header, patience)))
        if header.kind is not Kind.DATA:
            raise ProtocolError(f"{self.peer}: a {header.kind.name} frame here")
        return header.tag, header.offset, bytes(self._payload(header, patience))

    def _payload(self, header: Header, patience: ReadLimits) -> memoryview:
        room = memoryview(bytearray(header.length))
        self._connection.payload(patience, header, room)
        return room


def _within(timeout: float) -> ReadLimits:
    """A frame begins within so many seconds, and is whole soon after it began."""
    return ReadLimits(time.monotonic() + timeout, frame=FRAME_SECONDS)


def connect(
    host: str, port: int, timeout: float, protection: Protection = OPEN
) -> Channel:
    """Dial a shepherd.

    `PeerLost` if no process answers there, `NotAdmitted` if one end lacks the key or
    the certificate that the other end asks for.
    """
    address = format_address(host, port)
    try:
        return Channel(protection.dial(address, timeout, roles=(SHEPHERD,)))
    except (PeerLost, Timeout) as error:
        raise PeerLost(f"no shepherd at {host}:{port}: {error}") from error
    except ProtocolError as error:
        raise NotAdmitted(f"the shepherd at {address}: {error}") from error


def _name(sock: Wire) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "a peer that left"
    return f"{host}:{port}"
