"""Authentication by a key that all members share.

Before any other frame of a connection both ends prove that they have the key, with a
fresh nonce of each, so that recorded frames cannot be played again. The dialler proves
first: a dialler without the key gets no bytes by which the key could be guessed.

    dialler                                       listener
    AUTH  nonce_c                         ──►
                                          ◄──     AUTH  nonce_s
    PROOF HMAC(key, "dialler", c, s, b)   ──►
                                          ◄──     PROOF HMAC(key, "listener", c, s, b)

HMAC-SHA256 (RFC 2104). b is a digest of the listener's certificate where there is TLS:
a process that relays the proofs of others has another certificate, so its proofs fail.
The key decides which process may connect; it neither hides frames nor protects them
from changes on the way (`tls` does).
"""

import hmac
import os
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from pcp.errors import ConfigError, ProtocolError
from pcp.runtime.transport import link
from pcp.runtime.transport.blocking_io import BlockingConnection, ReadLimits
from pcp.runtime.transport.frame import MAX_TEXT, Frame, Kind, text
from pcp.runtime.transport.peer_identity import MEMBERS

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls

NONCE_BYTES = 32
PROOF_BYTES = 32
Key = bytes | None
_GIVE_IT = "this group has a key: give the same one to all members"


def checked(key: "bytes | str | None") -> Key:
    """The key as bytes; ConfigError when it is too short to be one."""
    if key is None:
        return None
    raw = key.encode() if isinstance(key, str) else bytes(key)
    if len(raw) < 8:
        raise ConfigError(
            "a key has at least 8 bytes; `openssl rand -hex 32` makes one"
        )
    return raw


def proof(
    key: bytes, who: str, nonce_c: bytes, nonce_s: bytes, binding: bytes = b""
) -> bytes:
    """The proof of an end that has the key, for these nonces over this channel."""
    said = b"\0".join((b"pcp", who.encode(), nonce_c, nonce_s, binding))
    return hmac.digest(key, said, "sha256")


def dial(
    address: str,
    timeout: float,
    key: Key,
    tls: "Tls | None" = None,
    near: bool = False,
    roles: Collection[str] = MEMBERS,
) -> link.Wire:
    """`link.dial`, TLS over it, and proofs both ways when there is a key.

    ProtocolError when the listener has another key, or no certificate that is valid
    here and has one of these `roles`.
    """
    deadline = time.monotonic() + timeout
    sock: link.Wire = link.dial(address, timeout, near=near)
    try:
        if tls is not None:
            left = max(0.05, deadline - time.monotonic())
            sock = tls.dial(sock, address, left, roles)
        if key is not None:
            _prove(sock, address, deadline, key)
    except BaseException:
        sock.close()
        raise
    return sock


def _prove(sock: link.Wire, address: str, deadline: float, key: bytes) -> None:
    peer, mine = BlockingConnection(sock, address), os.urandom(NONCE_BYTES)
    peer.send(Frame(Kind.AUTH, payload=mine))
    theirs = _answer(peer, deadline, Kind.AUTH, NONCE_BYTES)
    bound = binding(sock)
    peer.send(Frame(Kind.PROOF, payload=proof(key, "dialler", mine, theirs, bound)))
    shown = _answer(peer, deadline, Kind.PROOF, PROOF_BYTES)
    if not hmac.compare_digest(shown, proof(key, "listener", mine, theirs, bound)):
        raise ProtocolError(f"{address} has another key")


def _answer(
    peer: BlockingConnection, deadline: float, kind: Kind, length: int
) -> bytes:
    header, payload = peer.answer(ReadLimits(deadline), MAX_TEXT)
    if header.kind is Kind.REFUSE and kind is Kind.PROOF:
        raise ProtocolError(f"{peer.peer} refuses our proof: {text(payload)}")
    if header.kind is not kind or len(payload) != length:
        raise ProtocolError(
            f"{peer.peer} does not prove that it has the key: {text(payload)}"
        )
    return bytes(payload)


def binding(wire: object) -> bytes:
    """The digest to which proofs over this wire are bound; b"" without TLS."""
    return getattr(wire, "binding", b"")


class Gate:
    """The listener's side of the connection over one wire."""

    def __init__(self, key: Key, wire: object = None) -> None:
        self._key, self._wire = key, wire
        self._shown = b""
        self._expected: bytes | None = None
        self.open = key is None
        """Whether the other end has proved that it has the key."""

    def room(self, kind: Kind, length: int) -> bool:
        """Whether a frame of this kind and length is one of the proof's."""
        wanted = {Kind.AUTH: NONCE_BYTES, Kind.PROOF: PROOF_BYTES}
        return wanted.get(kind) == length

    def hear(self, kind: Kind, payload: bytes) -> Frame | None:
        """The answer to a frame of the dialler; ProtocolError to refuse it."""
        if self._key is None:
            raise ProtocolError("this group has no key; leave yours out")
        if not self.room(kind, len(payload)):
            raise ProtocolError(_GIVE_IT)
        if kind is Kind.AUTH and self._expected is None:
            nonce, bound = os.urandom(NONCE_BYTES), binding(self._wire)
            self._expected = proof(self._key, "dialler", payload, nonce, bound)
            self._shown = proof(self._key, "listener", payload, nonce, bound)
            return Frame(Kind.AUTH, payload=nonce)
        if kind is Kind.PROOF and self._expected is not None and not self.open:
            if not hmac.compare_digest(payload, self._expected):
                raise ProtocolError("another key")
            self.open = True
            return Frame(Kind.PROOF, payload=self._shown)
        raise ProtocolError(_GIVE_IT)
