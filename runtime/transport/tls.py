"""Encrypted connections: TLS 1.3, both ends certified.

    tls = Tls(cert="member.pem", key="member.key", ca="group-ca.pem")
    Communicator.connect(address, rank=0, world_size=4, tls=tls)

A process with a certificate that the group's own authority signed is a member. Members
are dialled by addresses that change, so no certificate has the name of a host. With an
authority of identities a member has a role, which is checked (`peer_identity`). With
`KeyTls` the key proves who is a member (`authentication`), and the proofs are bound to
the listener's self-signed certificate.

A listener admits a dialler by one byte once its certificate is verified, so that a
dialler learns of a refusal, and why, before it sends a frame.

A `TlsSocket` has the interface of a socket. OpenSSL works on memory here, and the
socket below keeps its mode: blocking with a limit in a thread that dials,
non-blocking in a loop.
"""

import hashlib
import socket
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from pcp.errors import ConfigError, PeerLost, ProtocolError
from pcp.runtime.transport.frame import HEADER_BYTES, MAGIC, Frame, Kind, pack_header
from pcp.runtime.transport.link import Untrusted, os_errors
from pcp.runtime.transport.peer_identity import (
    MEMBERS,
    PeerIdentity,
    RevocationList,
    check,
    namespace_of,
    of_certificate,
)

Trust = Callable[[PeerIdentity | None], None]
"""Raises `Untrusted` for a peer that may not connect."""

_RECORD = 16 << 10
"""Bytes that one call encrypts: the limit of a TLS record."""
_AT_ONCE = 512 << 10
"""Bytes that are encrypted at most before they go to the kernel."""
_LET_IN, _KEPT_OUT = b"+", b"-"
_SAME = (
    "start all with the same --key-file, or with --tls-cert, --tls-key and --tls-ca of "
    "one authority (in Python: key=, or tls=)"
)
_PLAIN = f"all is encrypted here: {_SAME}".encode()
_MEANINGS = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not good here: {detail}",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "CERTIFICATE_REQUIRED": "it wants a certificate, and we have shown none",
    "UNKNOWN_CA": "it refuses our certificate: its authority did not sign ours",
    "CERTIFICATE": "it refuses our certificate ({detail})",
    "DECRYPT_ERROR": "it refuses our certificate ({detail})",
    "BAD_RECORD_MAC": "bytes were changed on the way",
    "WRONG_VERSION_NUMBER": f"it does not encrypt: {_SAME}, or all without",
    "PROTOCOL_VERSION": "it does not speak TLS 1.3",
}
"""Part of OpenSSL's reason -> a reason in terms of members; first match."""


@dataclass(frozen=True)
class Tls:
    """A member's certificate and its key, and the authority of all members (PEM).

    The files are read for the first connection; ConfigError names a file that is
    wrong.
    """

    cert: str | Path
    key: str | Path
    ca: str | Path
    revoked: str | Path | None = None
    """A file of identities that are refused, one a line; it is read again."""

    def check(self) -> None:
        """Read the files now; ConfigError when they do not fit together."""
        _ = self._listening, self._dialling, self._binding, self._revoked.ids()

    def serve(
        self, sock: socket.socket, roles: Collection[str] = MEMBERS
    ) -> "TlsSocket":
        """The listener's end of an accepted socket; its first reads make the handshake.

        Identities are admitted in one of these roles.
        """
        wrapped = TlsSocket(
            sock, self._listening, server=True, trusts=self._trust(roles)
        )
        wrapped.binding = self._binding
        return wrapped

    def dial(
        self,
        sock: socket.socket,
        peer: str,
        timeout: float,
        roles: Collection[str] = MEMBERS,
    ) -> "TlsSocket":
        """The dialler's end, admitted. ProtocolError when one end refuses the other."""
        trusts = self._trust(roles)
        wrapped = TlsSocket(sock, self._dialling, server=False, trusts=trusts)
        wrapped.settimeout(timeout)
        with os_errors(peer, "shaking hands"):
            said = wrapped.recv(1)
        if not said:
            raise PeerLost(f"{peer} closed the connection while shaking hands")
        if said == _KEPT_OUT:
            with os_errors(peer, "shaking hands"):
                why = wrapped.recv(_RECORD).decode("utf-8", "replace")
            why = "".join(c for c in why if c.isprintable())
            raise ProtocolError(f"{peer} refuses us: {why}")
        if said != _LET_IN:
            raise ProtocolError(f"{peer} speaks TLS, but not as a member does")
        return wrapped

    def is_revoked(self, peer: PeerIdentity | None) -> bool:
        """Whether the identity of an admitted peer is revoked."""
        return peer is not None and peer.id in self._revoked.ids()

    def _trust(self, roles: Collection[str]) -> Trust:
        """The check of a peer after that of its certificate's signature."""
        namespace = self.namespace
        if namespace is None:
            return lambda peer: None
        return lambda peer: check(peer, namespace, roles, self._revoked.ids())

    @cached_property
    def namespace(self) -> str | None:
        """The namespace of the identities that the authority signs, or None."""
        return namespace_of(self._dialling.get_ca_certs())

    @cached_property
    def _revoked(self) -> RevocationList:
        return RevocationList(self.revoked)

    @cached_property
    def _binding(self) -> bytes:
        """The digest of this process's certificate, for proofs as a listener."""
        try:
            text = Path(self.cert).read_text(encoding="ascii")
            end = "-----END CERTIFICATE-----"
            first = text[text.index("-----BEGIN CERTIFICATE") : text.index(end)] + end
            return _digest(ssl.PEM_cert_to_DER_cert(first))
        except (OSError, ValueError) as error:
            raise ConfigError(f"tls: no certificate in cert={self.cert}") from error

    @cached_property
    def _listening(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # one connection an epoch: no session to resume
        return context

    @cached_property
    def _dialling(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cafile=self.ca)
        except (OSError, ValueError) as error:
            raise ConfigError(f"tls: no authority in ca={self.ca}: {error}") from error
        try:
            # Without this OpenSSL would ask for a password on the terminal.
            context.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"tls: cert={self.cert} and key={self.key} are not a certificate and "
                f"its unencrypted key: {error}"
            ) from error
        return context


@dataclass(frozen=True)
class KeyTls(Tls):
    """TLS for members with a key and no certificates: all frames are encrypted.

    Use it only with a `key`, whose proofs are the trust. The listener's certificate is
    self-signed, made by this process with the package `cryptography`.
    """

    cert: str | Path = ""
    key: str | Path = ""
    ca: str | Path = ""

    @cached_property
    def namespace(self) -> str | None:
        """None: there is no authority."""
        return None

    @cached_property
    def _made(self) -> tuple[bytes, bytes]:
        from pcp.runtime.transport.certificates import own

        return own()

    @cached_property
    def _binding(self) -> bytes:
        return _digest(ssl.PEM_cert_to_DER_cert(self._made[0].decode()))

    @cached_property
    def _listening(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        with TemporaryDirectory(prefix="pcp-") as folder:  # mode 0700
            cert, key = Path(folder, "cert.pem"), Path(folder, "key.pem")
            for file, content in zip((cert, key), self._made, strict=True):
                file.write_bytes(content)
            context.load_cert_chain(cert, key)
        return context

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def _digest(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


class TlsSocket:
    """The part of a socket's interface that links and handshakes use."""

    binding = b""
    """A digest of the listener's certificate, after the handshake."""
    identity: PeerIdentity | None = None
    """The identity in the peer's certificate, if any, after the handshake."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server: bool,
        trusts: Trust = lambda peer: None,
    ) -> None:
        self._sock, self._trusts = sock, trusts
        self._server = server
        self._timeout = sock.gettimeout()
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)
        self._scratch = memoryview(bytearray(4 * _RECORD))
        self._left = memoryview(b"")
        self._owed = 0
        self._heard = self._shaken = self._ended = False

    # As the socket's.

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self._sock.fileno()

    def getpeername(self) -> Any:
        """The other end's address."""
        return self._sock.getpeername()

    def getsockname(self) -> Any:
        """This end's address."""
        return self._sock.getsockname()

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """As the socket's."""
        return self._sock.getsockopt(level, option, size)

    def setblocking(self, blocking: bool) -> None:
        """Whether calls block without a limit, or not at all."""
        self.settimeout(None if blocking else 0.0)

    def settimeout(self, seconds: float | None) -> None:
        """How long one call may take."""
        self._timeout = seconds
        self._sock.settimeout(seconds)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Receiving.

    def recv_into(self, room: memoryview) -> int:
        """As a socket's; 0 at the end. Makes the handshake first."""
        until = None if not self._timeout else time.monotonic() + self._timeout
        while not self._ended:
            try:
                if not self._shaken:
                    self._shake()
                return self._tls.read(len(room), room)  # pyright: ignore[reportReturnType]
            except ssl.SSLWantReadError:
                self._feed(until)
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                self._ended = True
            except ssl.SSLError as error:
                self._push()  # the peer gets the alert with the reason
                raise Untrusted(_meaning(error)) from error
        return 0

    def recv(self, size: int) -> bytes:
        """As a socket's."""
        room = memoryview(bytearray(size))
        return bytes(room[: self.recv_into(room)])

    def buffered(self) -> bool:
        """Whether decrypted bytes are here that the selector does not report."""
        return self._in.pending > 0 or (self._shaken and self._tls.pending() > 0)

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        finally:
            self._push()
        self.identity = of_certificate(self._tls.getpeercert())
        try:
            self._trusts(self.identity)
        except Untrusted as error:
            if self._server:
                why = str(error).replace("its", "our", 1).encode()
                self._tls.write(_KEPT_OUT + why)
                self._push()
            raise
        if not self._server:
            self.binding = _digest(self._tls.getpeercert(binary_form=True) or b"")
        self._shaken = True
        if self._server:
            self._tls.write(_LET_IN)
            self._push()

    def _feed(self, until: float | None) -> None:
        """Read ciphertext from the socket; BlockingIOError when there is none."""
        if until is not None:
            self._sock.settimeout(max(1e-3, until - time.monotonic()))
        count = self._sock.recv_into(self._scratch)
        if self._server and not self._heard and self._heard_magic(count):
            self._refuse_plain()
        self._heard = True
        if count:
            self._in.write(self._scratch[:count])
        else:
            self._in.write_eof()

    def _heard_magic(self, count: int) -> bool:
        size = min(count, len(MAGIC))
        return size > 0 and self._scratch[:size] == MAGIC[:size]

    def _refuse_plain(self) -> None:
        """Send a plain refusal to a member without TLS."""
        refusal = Frame(Kind.REFUSE, payload=_PLAIN)
        self._left = memoryview(pack_header(refusal, 0) + _PLAIN)
        assert len(self._left) == HEADER_BYTES + len(_PLAIN)
        self._push()
        raise Untrusted("it does not speak TLS")

    # Sending.

    def sendmsg(self, views: Sequence[memoryview]) -> int:
        """As a socket's: how many of the bytes need not be given again.

        Encrypted bytes that the kernel has not taken are not counted yet: the next
        call, which must begin with the same bytes, counts them.
        """
        if not self._shaken:
            raise Untrusted("it has not shaken hands")
        if not self._push():
            raise BlockingIOError
        if not self._owed:
            self._owed = self._encrypt(views)
            if not self._push():
                raise BlockingIOError
        count, self._owed = self._owed, 0
        return count

    def sendall(self, data: memoryview | bytes) -> None:
        """As a socket's, for one with a time limit."""
        view = memoryview(data).cast("B")
        while len(view):
            view = view[self.sendmsg([view]) :]

    def _encrypt(self, views: Sequence[memoryview]) -> int:
        if sum(len(view) for view in views) <= _RECORD:
            views = [memoryview(b"".join(views))]
        done = 0
        for view in views:
            while len(view) and done < _AT_ONCE:
                count = self._tls.write(view[:_RECORD])
                view = view[count:]
                done += count
        return done

    def _push(self) -> bool:
        """Send ciphertext to the socket; whether all of it went."""
        while True:
            if not self._left:
                if not self._out.pending:
                    return True
                self._left = memoryview(self._out.read())
            try:
                count = self._sock.send(self._left)
            except BlockingIOError:
                return False
            self._left = self._left[count:]

    def shutdown(self, how: int) -> None:
        """Shut a direction of the connection down."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # OpenSSL waits for the peer's close alert, which may never come
        self._push()
        self._sock.shutdown(how)


def _meaning(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).upper().replace(" ", "_")
    detail = getattr(error, "verify_message", "") or reason.lower().replace("_", " ")
    for part, meaning in _MEANINGS.items():
        if part in reason:
            return meaning.format(detail=detail)
    return f"TLS failed: {detail}"
