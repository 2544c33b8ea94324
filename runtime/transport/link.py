"""The interface of links, and the sockets below them.

A `Link` moves frames to one peer, in order, without blocking; a `Sink`
receives frames. Both live in their loop's thread. Carriers: `tcp.TcpLink`
and `in_process.InProcessLink`.

Only this file translates the operating system's errors: code above it gets `PeerLost`,
`Timeout` and `ProtocolError`, no OSError.
"""

import errno
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self

from pcp.errors import ConfigError, PeerLost, ProtocolError, RuntimeFault, Timeout
from pcp.runtime.cage.outside import outside
from pcp.runtime.transport import unix_socket
from pcp.runtime.transport.address import format_address, is_loopback, parse_address
from pcp.runtime.transport.frame import Frame, Header
from pcp.wire import FAR_SECONDS

_NEAR_BUFFER = 512 << 10
"""A send buffer to the same machine, in bytes."""
_FAR_BUFFER = 32 << 20
_FAR_UNSENT = 512 << 10
"""Bytes of a far connection in flight, and besides those in the kernel's queue."""
_RTT = struct.Struct("148xI")
"""Where `struct tcp_info` has the least round trip, in microseconds.

The smoothed one has delayed acknowledgements in it: 40 ms, on loopback too.
"""
_NEVER = (1 << 32) - 1
_SO_SNDBUFFORCE = 32 if sys.platform == "linux" else None
ENDURE_SECONDS = 120.0
"""How long the kernel tries to deliver; heartbeats are to notice much earlier."""


class Untrusted(OSError):
    """A carrier refuses the bytes or the certificate of a peer, with the reason."""


class NotAdmitted(ProtocolError):
    """One end refuses the connection of the other, with the reason."""


class Wire(Protocol):
    """The part of a socket that links and handshakes use; also a `tls.TlsSocket`."""

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        ...

    def getpeername(self) -> Any:
        """The other end's address."""
        ...

    def getsockname(self) -> Any:
        """This end's address."""
        ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """A socket option, as the kernel has it."""
        ...

    def setblocking(self, blocking: bool, /) -> None:
        """Whether calls block without a limit, or not at all."""
        ...

    def settimeout(self, seconds: float | None, /) -> None:
        """How long one call may take."""
        ...

    def recv(self, size: int, /) -> bytes:
        """Receive up to `size` bytes; none at the end."""
        ...

    def recv_into(self, room: memoryview, /) -> int:
        """Receive bytes into `room`; how many, 0 at the end."""
        ...

    def sendmsg(self, views: Sequence[memoryview], /) -> int:
        """Send part of these bytes; how many the kernel took."""
        ...

    def sendall(self, data: memoryview | bytes, /) -> None:
        """Send all of these bytes."""
        ...

    def shutdown(self, how: int, /) -> None:
        """Shut a direction of the connection down."""
        ...

    def close(self) -> None:
        """Close the descriptor."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Sink(Protocol):
    """The receiver of a link's frames."""

    def place(self, link: "Link", header: Header) -> memoryview:
        """Where `header.length` bytes of payload go; ProtocolError to refuse.

        Called for every frame with a payload, before any byte of it is read.
        """
        ...

    def deliver(self, link: "Link", header: Header, payload: memoryview) -> None:
        """Take a whole, verified frame; `payload` is the memory from `place`."""
        ...

    def lost(self, link: "Link", error: RuntimeFault) -> None:
        """Note that the link is gone and brings no more frames. Called once."""
        ...


class Link(Protocol):
    """Frames to and from one peer."""

    sink: Sink

    @property
    def label(self) -> str:
        """The peer's name, for messages."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch in the header of every frame, both ways."""
        ...

    @epoch.setter
    def epoch(self, epoch: int) -> None: ...

    @property
    def last_heard(self) -> float:
        """Monotonic time of the last byte received."""
        ...

    @last_heard.setter
    def last_heard(self, when: float) -> None: ...

    @property
    def last_sent(self) -> float:
        """Monotonic time of the last byte sent."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Bytes given to the peer, headers included."""
        ...

    @property
    def bytes_received(self) -> int:
        """Bytes received from the peer, headers included."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the connection is open, if only for the BYE."""
        ...

    def send(self, frame: Frame) -> None:
        """Queue a frame; its payload must not change until `on_sent` runs."""
        ...

    @property
    def round_trip(self) -> float:
        """Seconds to the peer and back, as the kernel knows them; 0.0: not known."""
        ...

    def recall(self, tag: int, seq: int) -> None:
        """Drop the queued frames of an operation, so that its buffers are free again.

        `on_sent` is not called for a dropped frame.
        """
        ...

    def exhaust(self) -> None:
        """Deliver the frames that have arrived and were not read yet, now."""
        ...

    def close(self, *, flush: float = 0.0) -> None:
        """End the link, after sending queued frames for up to `flush` seconds."""
        ...

    def sever(self) -> None:
        """End the link as a crash would: without flush or farewell."""
        ...


class Borrower(Protocol):
    """A loop that moves frames over a link's socket, between those of the link."""

    def midway(self, link: Any) -> bool:
        """Whether it has sent a part of a frame."""
        ...

    def give_back(self) -> None:
        """Return the sockets to their links (`tcp.TcpLink.take_back`)."""
        ...


def translate(error: OSError, peer: str, during: str) -> RuntimeFault:
    """The RuntimeFault of an OSError on a connection to `peer`."""
    if isinstance(error, Untrusted):
        return NotAdmitted(f"{peer}: {error}")
    if isinstance(error, TimeoutError):
        return Timeout(f"{peer} did not answer in time ({during})")
    reason = error.strerror or str(error) or type(error).__name__
    return PeerLost(f"the connection to {peer} failed: {reason} ({during})")


def unanswered(error: PeerLost) -> PeerLost:
    """The fault of a peer that accepted a connection and has not sent a byte on it."""
    return PeerLost(
        f"{error} before it answered: it died, or its port belongs to another "
        f"program; look what listens there, or give pcp another port",
        peer=error.peer,
    )


@contextmanager
def os_errors(peer: str, during: str) -> Iterator[None]:
    """Inside, an OSError becomes PeerLost or Timeout that names the peer."""
    try:
        yield
    except OSError as error:
        raise translate(error, peer, during) from error


def dial(address: str, timeout: float, *, near: bool = False) -> socket.socket:
    """A connected, tuned socket; PeerLost or Timeout without an answer.

    Without the network if `near` and the peer is on this machine (`unix_socket`).
    """
    place = parse_address(address)
    if near and (sock := unix_socket.dial(address, timeout)) is not None:
        return sock
    with os_errors(address, "connecting"):
        sock = outside(socket.create_connection, place, timeout=timeout)
        try:
            tune(sock)
        except BaseException:
            sock.close()
            raise
        return sock


def own_address(peer: str) -> str:
    """The address of this machine on the way to `peer`, without a port."""
    host, port = parse_address(peer)
    with os_errors(peer, "looking for the way there"):
        # No packet is sent; any port will do.
        found = socket.getaddrinfo(host, port or 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])
            return probe.getsockname()[0]


def listen(address: str, backlog: int = 128) -> socket.socket:
    """A non-blocking listening socket; ConfigError when the port is taken."""
    host, port = parse_address(address)
    try:
        sock = outside(_listening, host, port, backlog)
    except OSError as error:
        hint = "choose another port"
        if error.errno != errno.EADDRINUSE:
            hint = "is this an address of this machine?"
        raise ConfigError(f"cannot listen on {address}: {error}; {hint}") from error
    sock.setblocking(False)
    return sock


def _listening(host: str, port: int, backlog: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=backlog)


def accept(listener: socket.socket) -> tuple[socket.socket, str] | None:
    """The next waiting connection and its address, or None when there is none for us.

    RuntimeFault when it cannot be taken: to try again at once would not help.
    """
    try:
        sock, peer = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return None  # the dialler has gone
    except OSError as error:
        raise RuntimeFault(
            f"a connection waits and cannot be taken: {error.strerror}; if there are "
            f"too many open files, raise their limit (ulimit -n)"
        ) from error
    if unix_socket.carries(sock):
        if unix_socket.ours(sock):
            return unix_socket.tuned(sock), unix_socket.PEER
        sock.close()  # another user's: it dials again over the network
        return None
    with suppress(OSError):  # gone already; the next read reports it
        tune(sock)
    return sock, format_address(*peer[:2])


def tune(sock: socket.socket) -> None:
    """Send small frames at once; let the kernel probe a silent peer.

    Raises OSError when the peer is gone already.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    endure(sock, ENDURE_SECONDS)
    if is_loopback(sock.getpeername()[0]):
        _unpace(sock)
    elif round_trip(sock) >= FAR_SECONDS:
        _reach_far(sock)


def within_machine(sock: Wire) -> bool:
    """Whether both ends have the same address: one machine, most likely."""
    if unix_socket.carries(sock):
        return True
    try:
        return sock.getpeername()[0] == sock.getsockname()[0]
    except OSError:
        return False  # gone already; the next read reports it


def round_trip(sock: Wire) -> float:
    """The kernel's round trip time in seconds; 0.0 where it gives none."""
    if not hasattr(socket, "TCP_INFO"):
        return 0.0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT.size)
    except OSError:
        return 0.0  # gone already; the next read reports it
    least = _RTT.unpack(info)[0] if len(info) == _RTT.size else _NEVER
    return 0.0 if least == _NEVER else least / 1e6


def window(sock: Wire) -> int:
    """Bytes that can be under way to the peer: half the buffer is the kernel's."""
    size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4)
    return max(int.from_bytes(size, sys.byteorder), _limit("ipv4/tcp_wmem")) // 2


def endures_loss(sock: Wire) -> bool:
    """Whether a lost packet hardly slows the connection: BBR does the sending."""
    if not hasattr(socket, "TCP_CONGESTION"):
        return False
    with suppress(OSError):
        name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        return name.rstrip(b"\0") == b"bbr"
    return False


def _reach_far(sock: socket.socket) -> None:
    """Allow more bytes in flight than the system's limit, and few queued behind them.

    BBR where the system has it, since it does not count every loss as a full queue. A
    payload in the kernel has chosen its connection, however slow that is; so only the
    bytes that the window takes at once are handed over. A buffer that is set is never
    adjusted again: it is set only if it then is larger than it could grow.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        unsent = socket.TCP_NOTSENT_LOWAT
        sock.setsockopt(socket.IPPROTO_TCP, unsent, _FAR_UNSENT)
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
    force = getattr(socket, "SO_SNDBUFFORCE", _SO_SNDBUFFORCE)
    try:
        if force is not None:
            sock.setsockopt(socket.SOL_SOCKET, force, _FAR_BUFFER)
            return
    except PermissionError:
        pass
    if 2 * min(_FAR_BUFFER, _limit("core/wmem_max")) > _limit("ipv4/tcp_wmem"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _FAR_BUFFER)


def _limit(name: str) -> int:
    """The last number of a network setting of the kernel; 0 where there is none."""
    try:
        return int(Path("/proc/sys/net", name).read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def endure(sock: socket.socket, seconds: float) -> None:
    """Limit the time in which the kernel tries to get sent bytes acknowledged.

    Without a bound that is a quarter of an hour on most systems. Where the system
    has no such option, the probes of `tune` and the heartbeats remain.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        limit = int(1000 * seconds)
        with suppress(OSError):  # gone already; the next read reports it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)


def _unpace(sock: socket.socket) -> None:
    """Inside one machine a congestion control that paces only costs time.

    BBR holds a loopback connection to about half of the rate of memory. Which
    others there are, and whether a process may choose them, depends on the system. A
    payload in the kernel should still be in the cache when it is read: megabytes are
    not.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER)
    if not hasattr(socket, "TCP_CONGESTION"):
        return
    for name in (b"cubic", b"reno"):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
        except OSError:
            continue
        return
