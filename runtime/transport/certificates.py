"""Keys and certificates, made by the library `cryptography`: identities and issuers.

    identity   an Ed25519 key in a file of mode 0600; its id is base32 of the first 20
               bytes of SHA-256 of the public key
    issuer     another such key, and a certificate of its own with a namespace in it
    leaf       a certificate of an identity in a role, which an issuer signed for days

A process that only uses certificates needs `ssl` alone.
"""

import base64
import hashlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pcp.errors import ConfigError, MissingPackage
from pcp.runtime.transport.peer_identity import ISSUER, ROLES, PeerIdentity

_ISSUER_DAYS = 3650
_SKEW = timedelta(minutes=5)
"""How far two machines' clocks may differ."""


def own() -> tuple[bytes, bytes]:
    """A self-signed certificate without names, and its key (PEM), for this process."""
    key = library().ed25519.Ed25519PrivateKey.generate()
    return _pem(_certificate("pcp", key.public_key(), key, None, 3650)), _key_pem(key)


def new_identity(path: Path) -> str:
    """Make an identity's file; returns its id. ConfigError if the file exists."""
    key = library().ed25519.Ed25519PrivateKey.generate()
    _write_private(path, _key_pem(key))
    return identity_of(key.public_key())


def identity_of(public_key: Any) -> str:
    """The id of a public key."""
    raw = public_key.public_bytes_raw()
    return base64.b32encode(hashlib.sha256(raw).digest()[:20]).decode().lower()


def load_identity(path: Path) -> Any:
    """The private key in a file; ConfigError if others may read it, or for no key."""
    of = library()
    try:
        key = of.serialization.load_pem_private_key(read_private(path), None)
    except of.unreadable as error:
        raise ConfigError(f"{path}: no identity: {error}") from error
    if not isinstance(key, of.ed25519.Ed25519PrivateKey):
        raise ConfigError(f"{path}: no identity: it is no Ed25519 key")
    return key


def new_issuer(path: Path, namespace: str) -> Path:
    """Make an issuer's key, and its certificate beside it; the certificate's path."""
    new_identity(path)
    key = load_identity(path)
    made = _certificate(namespace, key.public_key(), key, None, _ISSUER_DAYS, ca=True)
    certificate = path.with_suffix(".pem")
    certificate.write_bytes(_pem(made))
    return certificate


def issue(
    issuer: Path, identity: Path, role: str, days: float
) -> tuple[bytes, PeerIdentity]:
    """A certificate (PEM) for an identity in a role, and its fields."""
    if role not in ROLES:
        raise ConfigError(f"{role!r} is no role; there are {', '.join(ROLES)}")
    of, signer = library(), load_identity(issuer)
    try:
        content = issuer.with_suffix(".pem").read_bytes()
        authority = of.x509.load_pem_x509_certificate(content)
        names = authority.subject.get_attributes_for_oid(of.x509.NameOID.COMMON_NAME)
        (namespace,) = [str(name.value) for name in names]
    except (OSError, *of.unreadable) as error:
        why = f"no certificate of an issuer: {error}"
        raise ConfigError(f"{issuer.with_suffix('.pem')}: {why}") from error
    public = load_identity(identity).public_key()
    said = PeerIdentity(namespace, role, identity_of(public))
    made = _certificate(said.id, public, signer, authority.subject, days, uri=said.uri)
    return _pem(made), said


def read_private(path: Path, least: int = 0) -> bytes:
    """A secret in a file; ConfigError if others may read it, or it is too short."""
    try:
        stat = path.stat()
        mode, content = stat.st_mode, path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    # A mounted secret may belong to another user, and be readable by this one's group.
    mine = 0o077 if os.name == "posix" and stat.st_uid == os.geteuid() else 0o007
    if os.name == "posix" and mode & mine:
        raise ConfigError(
            f"{path}: others may read this secret (mode {mode & 0o777:04o}); "
            f"`chmod 600 {path}` if nobody has yet, else make another"
        )
    if len(content.strip()) < least:
        raise ConfigError(
            f"{path}: a key of {len(content.strip())} bytes can be guessed; at least "
            f"{least}: `openssl rand -hex 32` makes one"
        )
    return content


def _certificate(
    name: str,
    public: Any,
    signer: Any,
    issuer: Any,
    days: float,
    *,
    ca: bool = False,
    uri: str | None = None,
) -> Any:
    x509 = library().x509
    own_name = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]
    if ca:
        organisation = x509.NameOID.ORGANIZATION_NAME
        own_name.append(x509.NameAttribute(organisation, ISSUER))
    subject, now = x509.Name(own_name), datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca, 0 if ca else None), critical=True)
    )
    if ca:
        builder = builder.add_extension(_usage(x509), critical=True)
    if uri is not None:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, None)


def _usage(x509: Any) -> Any:
    """The usage of a key that only signs certificates."""
    no = dict.fromkeys(
        (
            "digital_signature", "content_commitment", "key_encipherment",
            "data_encipherment", "key_agreement", "crl_sign", "encipher_only",
            "decipher_only",
        ),
        False,
    )  # fmt: skip
    return x509.KeyUsage(key_cert_sign=True, **no)


def _pem(certificate: Any) -> bytes:
    return certificate.public_bytes(library().serialization.Encoding.PEM)


def _key_pem(key: Any) -> bytes:
    of = library().serialization
    return key.private_bytes(of.Encoding.PEM, of.PrivateFormat.PKCS8, of.NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(content)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


class _Library:
    """The parts of `cryptography` that are used here."""

    def __init__(self) -> None:
        try:
            from cryptography import x509
            from cryptography.exceptions import (
                InternalError,
                InvalidSignature,
                UnsupportedAlgorithm,
            )
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric import ed25519
            from cryptography.x509.oid import NameOID
        except ImportError as error:
            raise MissingPackage(
                "keys and certificates are made with cryptography: "
                'pip install "pcp-mlir[secure]"'
            ) from error
        self.x509: Any = x509
        self.x509.NameOID = NameOID
        self.serialization: Any = serialization
        self.ed25519: Any = ed25519
        self.InvalidSignature: Any = InvalidSignature
        self.unreadable = (ValueError, TypeError, UnsupportedAlgorithm, InternalError)
        """Errors of reading bytes that are no key or no certificate."""


def library() -> _Library:
    """The parts of `cryptography`; MissingPackage where it is not installed."""
    return _Library()
