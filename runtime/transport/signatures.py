"""Signers of files, and the trust of a process in them.

    signer = Signer(Path("builder.identity"))
    signed = bundle.signed(signer.sign(signing.BUNDLE, bundle.digest))
    Trust(ids={signer.id}).check(signing.BUNDLE, bundle.digest, signed.signatures, "x")

A process trusts identities by their ids (`pcp worker --trust ID`). Without ids, in a
run with identities, it trusts the identities that the run's issuer certified for the
role `shepherd`, while the certificate is valid and the identity is not revoked.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pcp.errors import BundleError, ConfigError
from pcp.runtime.transport import certificates
from pcp.runtime.transport.link import Untrusted
from pcp.runtime.transport.peer_identity import (
    PeerIdentity,
    RevocationList,
    check,
    of_uri,
)
from pcp.runtime.transport.tls import Tls
from pcp.signing import BUNDLE, Signature, statement

SIGNERS = ("shepherd",)
"""The roles of signers whose bundles a worker runs."""


class Signer:
    """An identity that signs, with its certificate if it has one in a role."""

    def __init__(self, identity: Path, certificate: Path | None = None) -> None:
        """ConfigError for files of another kind, or of two keys."""
        self._key = certificates.load_identity(identity)
        public = self._key.public_key()
        self._public = public.public_bytes_raw().hex()
        self._certificate = ""
        self.id = certificates.identity_of(public)
        if certificate is not None:
            self._certificate = certificate.read_text(encoding="ascii")

    def sign(self, kind: str, digest: str) -> Signature:
        """The signature of a file of this kind with this SHA-256."""
        made = self._key.sign(statement(kind, digest)).hex()
        return Signature(
            key=self._public, signature=made, certificate=self._certificate
        )

    def mark(self, kind: str, digest: str) -> str:
        """Key and signature as one word of hexadecimal digits."""
        return self._public + self._key.sign(statement(kind, digest)).hex()


def own_signer(tls: Tls | None) -> Signer | None:
    """The signer of this process's own certificate; None: it is of no identity."""
    if tls is None or tls.namespace is None:
        return None
    return Signer(Path(tls.key), Path(tls.cert))


def of_mark(mark: str) -> Signature:
    """The signature in a word that `Signer.mark` made; `ValueError` for another."""
    return Signature(key=mark[:64], signature=mark[64:])


def signer_of(kind: str, digest: str, signature: Signature) -> str:
    """The id whose key made this signature of this file.

    `Untrusted` where it is not of this file.
    """
    library = certificates.library()
    try:
        public = library.ed25519.Ed25519PublicKey.from_public_bytes(
            bytes.fromhex(signature.key)
        )
        public.verify(bytes.fromhex(signature.signature), statement(kind, digest))
    except (*library.unreadable, library.InvalidSignature) as error:
        raise Untrusted("a signature is not of these contents") from error
    return certificates.identity_of(public)


@dataclass(frozen=True)
class Trust:
    """The signers whose signatures count: ids, or else an issuer's shepherds."""

    ids: frozenset[str] = frozenset()
    issuer: Path | None = None
    """The certificate (PEM) of an issuer of identities."""
    namespace: str = ""
    """The namespace of the identities that the issuer signs."""
    revoked: RevocationList = field(default_factory=lambda: RevocationList(None))

    @classmethod
    def of(cls, ids: Collection[str], tls: Tls | None) -> "Trust":
        """The trust of a process by its flags and certificates."""
        if tls is None or tls.namespace is None:
            return cls(frozenset(ids))
        revoked = RevocationList(tls.revoked)
        return cls(frozenset(ids), Path(tls.ca), tls.namespace, revoked)

    @property
    def asks(self) -> bool:
        """Whether a signature is needed at all."""
        return bool(self.ids) or self.issuer is not None

    def check(
        self, kind: str, digest: str, signatures: Sequence[Signature], source: str
    ) -> str:
        """The id of the trusted signer; "" where no signature is needed.

        `BundleError` without a trusted signature, or for a wrong one.
        """
        if not self.asks:
            return ""
        faults: list[str] = []
        try:
            for signature in signatures:
                signer = signer_of(kind, digest, signature)
                if (fault := self._fault(signer, signature)) is None:
                    return signer
                faults.append(fault)
        except Untrusted as error:
            faults = [str(error)]
        why = "; ".join(faults) or "it is not signed"
        how = (
            "`pcp-compile --sign IDENTITY` signs one, --trust ID names whom to trust"
            if kind == BUNDLE
            else "--trust ID names whom to trust"
        )
        raise BundleError(f"{source}: refused: {why}; {how}")

    def _fault(self, signer: str, signature: Signature) -> str | None:
        """Why a signer is not trusted."""
        if signer in self.revoked.ids():
            return f"its signer {signer} is revoked"
        if signer in self.ids:
            return None
        if self.ids or self.issuer is None:
            return f"its signer {signer} is not one that was named with --trust"
        try:
            said = certified(signature, self.issuer)
            check(said, self.namespace, SIGNERS, self.revoked.ids())
        except Untrusted as error:
            return f"its signer {signer}: {error}"
        return None


ANYBODY = Trust()
"""The trust of a process that needs no signatures."""


def certified(signature: Signature, issuer: Path) -> PeerIdentity:
    """The identity in the certificate of a signature, if it is valid now.

    `Untrusted` for one that the issuer did not sign, that has expired, or is of
    another key.
    """
    library = certificates.library()
    if not signature.certificate:
        raise Untrusted("it shows no certificate")
    try:
        leaf = library.x509.load_pem_x509_certificate(signature.certificate.encode())
        leaf.verify_directly_issued_by(_certificate(issuer))
        raw = leaf.public_key().public_bytes_raw()
        names = leaf.extensions.get_extension_for_class(
            library.x509.SubjectAlternativeName
        ).value.get_values_for_type(library.x509.UniformResourceIdentifier)
    except (
        *library.unreadable,
        AttributeError,
        library.InvalidSignature,
        library.x509.ExtensionNotFound,
    ) as error:
        raise Untrusted("its certificate is not the issuer's") from error
    now = datetime.now(UTC)
    if not leaf.not_valid_before_utc <= now <= leaf.not_valid_after_utc:
        raise Untrusted("its certificate has expired, or is not good yet")
    said = of_uri(names[0]) if len(names) == 1 else None
    if said is None or raw.hex() != signature.key or said.id != _id(leaf):
        raise Untrusted("its certificate is of another key")
    return said


def _id(certificate: Any) -> str:
    return certificates.identity_of(certificate.public_key())


def _certificate(path: Path) -> Any:
    try:
        content = path.read_bytes()
        return certificates.library().x509.load_pem_x509_certificate(content)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no certificate of an issuer: {error}") from error
