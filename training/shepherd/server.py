"""The shepherd's server: a listener, its connections, and a queue of their events.

One thread accepts; each connection has a reader and a writer thread. All events go into
one queue, so that the shepherd is a single loop over events. A connection that sends
garbage, or reads its messages too slowly, is closed, and disturbs no other one.

A flood does not stop the loop: a connection has at most `MAX_UNHANDLED` messages in the
queue, and sends on average `MAX_RATE` a second; further messages stay in its socket. A
connection is a stranger until a worker is welcomed over it. There are at most
`MAX_STRANGERS` strangers, and one that is silent for `STRANGER_SECONDS` is closed. When
there is no room for a new connection, a stranger that has sent nothing yet is closed,
or else the one that has been silent longest.
"""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pcp.errors import ConfigError, PeerLost, ProtocolError, RuntimeFault, Timeout
from pcp.runtime.transport import link
from pcp.runtime.transport.authentication import Gate, checked
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.link import Wire
from pcp.runtime.transport.listener import EXHAUSTED_SECONDS
from pcp.runtime.transport.peer_identity import MEMBERS, ROLES, PeerIdentity
from pcp.training.coordinator.events import Lost, Received
from pcp.training.wire.channel import OPEN, Channel, NotAdmitted
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.messages import (
    Heartbeat,
    Hello,
    Refused,
    Welcome,
)
from pcp.training.wire.operator_messages import (
    Order,
    StatusQuery,
)

HANDSHAKE_SECONDS = 10.0
MAX_CONNECTIONS = 1024
MAX_STRANGERS = 128  # connections over which no worker was welcomed
STRANGER_SECONDS = 10.0
MAX_UNHANDLED = 64
MAX_RATE = 100.0
"""Messages a second; as many may come at once."""
FAREWELL_SECONDS = 1.0
"""A peer that has read all messages closes its end within so long."""
_BACKLOG = 512  # messages that a peer may leave unread before its connection is closed
_SILENCE = 3600.0  # heartbeats, not this limit, tell a silent worker
_log = logging.getLogger("pcp.training")


@dataclass(frozen=True)
class FinishedWork:
    """Work in a thread is done; `then` is called with its result."""

    then: Callable[[Any], None]
    result: Any


Event = Received | Lost | FinishedWork


class Connection:
    """One peer's connection; `send` never blocks."""

    def __init__(self, channel: Channel, events: "queue.Queue[Event]") -> None:
        self._channel = channel
        self._events = events
        self._outgoing: queue.Queue[Message | bytes | None] = queue.Queue(_BACKLOG)
        self._over = threading.Event()
        self._leaving = False
        self.peer, self.here = channel.peer, channel.here
        self.welcomed = False
        """Whether a worker was welcomed over the connection."""
        self.heard = False
        """Whether the peer was admitted and has sent a message."""
        self.heard_at = time.monotonic()
        """When the peer sent its last message, or else connected."""
        self._unhandled = threading.BoundedSemaphore(MAX_UNHANDLED)
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True, name=f"hub-{self.peer}").start()

    def send(self, *contents: Message | bytes) -> None:
        """Queue messages, and blobs that follow them."""
        try:
            for content in contents:
                self.welcomed = self.welcomed or isinstance(content, Welcome)
                self._outgoing.put_nowait(content)
        except queue.Full:
            self._end(f"{self.peer} does not read its messages")

    def refuse(self, reason: str) -> None:
        """Send a `Refused` with the reason, then close."""
        self.send(Refused(reason=reason))
        self.close()

    def close(self) -> None:
        """Close once the queued messages are sent, and the peer has read them."""
        self._leaving = True
        try:
            self._outgoing.put_nowait(None)
        except queue.Full:
            self._end("closed")

    def handled(self) -> None:
        """A message of this connection is out of the queue of events."""
        self._unhandled.release()

    def _read(self) -> None:
        limit, pace = HANDSHAKE_SECONDS, RateLimiter(MAX_RATE)
        while not self._over.is_set():
            try:
                self._channel.admit(limit)
                message = self._channel.receive(limit)
                self._check_role(message)
            except NotAdmitted as error:
                self._end(str(error))
                return
            except ProtocolError as error:
                self.refuse(str(error))
                self._end(str(error), close=False)
                return
            except (PeerLost, Timeout) as error:
                self._end(str(error))
                return
            if self._leaving:
                continue
            self.heard, self.heard_at = True, time.monotonic()
            limit = _SILENCE if self._stays(message) else STRANGER_SECONDS
            self._over.wait(pace.pause(self.heard_at))
            while not self._unhandled.acquire(timeout=1.0):
                if self._over.is_set():
                    return
            self._events.put(Received(self, message))

    @property
    def identity(self) -> PeerIdentity | None:
        """The identity of the peer, if the run has identities."""
        return self._channel.identity

    def _check_role(self, message: Message) -> None:
        """ProtocolError for a message that the peer's role may not send."""
        peer, roles = self.identity, _MAY.get(type(message), MEMBERS)
        if peer is not None and peer.role not in roles:
            raise ProtocolError(
                f"{message.kind!r} is not for the role {peer.role} of this certificate"
            )

    def _stays(self, message: Message) -> bool:
        """Whether heartbeats decide when the peer has been silent too long."""
        return self.welcomed or isinstance(message, Hello)

    def _write(self) -> None:
        try:
            while (content := self._outgoing.get()) is not None:
                if isinstance(content, bytes):
                    self._channel.send_blob(content)
                else:
                    self._channel.send(content)
            # A socket that is closed with unread messages drops the messages sent last.
            self._channel.finish()
            self._over.wait(FAREWELL_SECONDS)
        except PeerLost as error:
            self._end(str(error))
        self._over.set()
        self._channel.close()

    def _end(self, reason: str, close: bool = True) -> None:
        if not self._over.is_set():
            self._over.set()
            if not self._leaving:
                # Its worker is known by the address at which its peers reach it.
                self._events.put(Lost(self, reason.replace(self.peer, "it")))
        if close:
            self._channel.close()
            self._wake_writer()

    def _wake_writer(self) -> None:
        try:
            self._outgoing.put_nowait(None)
        except queue.Full:
            pass  # the writer thread is in a send, which fails now


_MAY: dict[type[Message], Collection[str]] = {
    StatusQuery: ROLES,
    Order: ("operator", "shepherd"),
    Heartbeat: ROLES,
}
"""The roles that may send these; all other messages are sent by members."""


class RateLimiter:
    """A limit of the messages of a connection: so many a second, on average."""

    def __init__(self, rate: float) -> None:
        self._rate, self._left, self._at = rate, rate, time.monotonic()

    def pause(self, now: float) -> float:
        """Seconds to wait before a message that came now is handled."""
        self._left += (now - self._at) * self._rate
        self._left, self._at = min(self._left, self._rate) - 1.0, now
        return max(0.0, -self._left / self._rate)


class Server:
    """The listening socket and its connections.

    With a `protection`, only peers with the same key, or with a certificate of the same
    authority, are admitted.
    """

    def __init__(self, host: str, port: int, protection: Protection = OPEN) -> None:
        protection.check()
        self._protection = protection
        self.events: queue.Queue[Event] = queue.Queue()
        self._listener = _listen(host, port)
        self._closing = threading.Event()
        self._connections: list[Connection] = []
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True, name="hub")
        self._thread.start()

    def next(self, timeout: float) -> Event | None:
        """The next event, or None when `timeout` seconds brought none."""
        try:
            event = self.events.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(event, Received) and isinstance(event.connection, Connection):
            event.connection.handled()
        return event

    def tell_workers(self, message: Message) -> None:
        """Send a message to all workers that were welcomed."""
        for connection in self._connections:
            if connection.welcomed and not connection._over.is_set():
                connection.send(message)

    def drop_revoked(self) -> None:
        """End the connections of identities that were revoked since they came."""
        tls = self._protection.tls
        for connection in [] if tls is None else self._connections:
            if tls is not None and tls.is_revoked(connection.identity):
                connection._end("its identity is revoked")

    def work(self, what: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `what` in a thread and then, as an event, `then(result)`.

        The result is the exception, if `what` raises one.
        """

        def run() -> None:
            try:
                result = what()
            except Exception as error:
                result = error
            self.events.put(FinishedWork(then, result))

        threading.Thread(target=run, daemon=True, name="hub-work").start()

    def close(self) -> None:
        """Stop listening and close every connection once its messages are out."""
        self._closing.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not every system wakes the listener this way; close does
        self._listener.close()
        for connection in self._connections:
            connection.close()
        for connection in self._connections:
            connection._over.wait(2.0)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                arrival = link.accept(self._listener)
            except RuntimeFault as fault:
                if self._closing.is_set():
                    return
                _log.warning("%s", fault)
                self._closing.wait(EXHAUSTED_SECONDS)
                continue
            if arrival is None:
                continue  # the peer has gone already
            sock, _ = arrival
            if not self._has_room():
                sock.close()
                continue
            wire = self._wire(sock)
            channel = Channel(wire, Gate(checked(self._protection.key), wire))
            try:
                self._connections.append(Connection(channel, self.events))
            except (RuntimeError, OSError) as error:  # no more threads, most likely
                _log.warning("a connection cannot be served: %s", error)
                sock.close()
                self._closing.wait(EXHAUSTED_SECONDS)

    def _has_room(self) -> bool:
        """Whether there is room for a connection; a silent stranger gives way to it."""
        self._connections = [c for c in self._connections if not c._over.is_set()]
        strangers = [c for c in self._connections if not c.welcomed]
        full = len(self._connections) >= MAX_CONNECTIONS
        if strangers and (full or len(strangers) >= MAX_STRANGERS):
            longest = min(strangers, key=lambda c: (c.heard, c.heard_at))
            longest._end("sent nothing, and its place was needed")
            full = full and not longest._over.is_set()
        return not full

    def _wire(self, sock: socket.socket) -> Wire:
        """The socket, or TLS over it, whose handshake the reader thread does."""
        tls = self._protection.tls
        return sock if tls is None else tls.serve(sock, ROLES)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host!r}: {error.strerror}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; is another shepherd "
            "running there? Choose another --port"
        ) from error
    return sock
