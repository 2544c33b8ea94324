"""A control connection: messages, and the bytes of a bundle, in checked frames.

The frames are those of `pcp.runtime.framing`. The control protocol uses `DATA`
frames only: tag 1 carries a message, tag 2 a part of a blob at its offset.
Lengths are bounded by the framing before anything is allocated. A timeout
between two frames is a `Timeout`; inside one, or bytes that do not belong here,
end the connection.
"""

import socket
import threading
import time

from pcp.errors import PeerLost, ProtocolError, Timeout
from pcp.runtime import framing
from pcp.runtime.framing import Frame, Kind
from pcp.training.protocol import Message, decode, encode

MESSAGE = 1
BLOB = 2
_PART = 1 << 20
MAX_BLOB = 8 << 30

# A peer that takes longer for the rest of a frame than this is as good as gone.
FRAME_SECONDS = 20.0


class Channel:
    """One end of a control connection. Sending is safe from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        # A second handle, since a timeout belongs to the handle: the reader's
        # must not cut the writer short.
        self._out = sock.dup()
        self._sending = threading.Lock()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
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

    def close(self) -> None:
        """End the connection; a thread blocked in `receive` gets `PeerLost`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was faster
        self._socket.close()
        self._out.close()

    def _send(self, tag: int, offset: int, payload: bytes, timeout: float) -> None:
        frame = Frame(Kind.DATA, tag=tag, offset=offset, payload=payload)
        content = framing.pack_header(frame, epoch=0) + payload
        with self._sending:
            try:
                self._send_all(memoryview(content), time.monotonic() + timeout)
            except OSError as error:
                raise PeerLost(f"{self.peer}: connection lost: {error}") from error

    def _send_all(self, content: memoryview, deadline: float) -> None:
        while content:
            self._out.settimeout(max(1e-3, deadline - time.monotonic()))
            sent = self._out.send(content)
            content = content[sent:]

    def _receive(self, timeout: float) -> tuple[int, int, bytes]:
        raw = self._exactly(framing.HEADER_BYTES, timeout)
        header = framing.unpack_header(raw)
        if header.kind is not Kind.DATA:
            raise ProtocolError(f"{self.peer}: a {header.kind.name} frame here")
        payload = self._exactly(header.length, FRAME_SECONDS, begun=True)
        framing.verify_payload(header, payload)
        return header.tag, header.offset, payload

    def _exactly(self, count: int, timeout: float, begun: bool = False) -> bytes:
        buffer = bytearray(count)
        view, done = memoryview(buffer), 0
        deadline = time.monotonic() + timeout
        while done < count:
            try:
                self._socket.settimeout(max(1e-3, deadline - time.monotonic()))
                got = self._socket.recv_into(view[done:])
            except TimeoutError as error:
                if done or begun:
                    raise PeerLost(f"{self.peer} stopped inside a frame") from error
                raise Timeout(f"nothing from {self.peer} in {timeout:g} s") from error
            except OSError as error:
                raise PeerLost(f"{self.peer}: connection lost: {error}") from error
            if not got:
                raise PeerLost(f"{self.peer} closed the connection")
            done += got
            if not begun:
                begun, deadline = True, time.monotonic() + FRAME_SECONDS
        return bytes(buffer)


def connect(host: str, port: int, timeout: float) -> Channel:
    """Dial a shepherd; `PeerLost` if nobody answers there."""
    try:
        return Channel(socket.create_connection((host, port), timeout))
    except OSError as error:
        reason = error.strerror or str(error)
        raise PeerLost(f"no shepherd at {host}:{port}: {reason}") from error


def split_address(address: str) -> tuple[str, int]:
    """`HOST:PORT` (or `[V6]:PORT`) as its two parts; `ProtocolError` otherwise."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ProtocolError(f"{address!r} is no HOST:PORT")
    return host.strip("[]"), int(port)


def _name(sock: socket.socket) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "a peer that left"
    return f"{host}:{port}"
