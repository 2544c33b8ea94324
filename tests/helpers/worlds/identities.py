"""Identities for tests: an issuer of a namespace, and members in their roles."""

from pathlib import Path

from pcp.runtime.transport import certificates
from pcp.runtime.transport.tls import Tls


def member(
    folder: Path, role: str, namespace: str = "run", name: str = "", days: float = 1
) -> tuple[Tls, str]:
    """The files of an identity in a role, and its id; `folder` has its issuer's."""
    issuer = folder / f"{namespace}.key"
    if not issuer.exists():
        certificates.new_issuer(issuer, namespace)
    identity = folder / f"{namespace}-{name or role}.identity"
    number = certificates.new_identity(identity)
    certificate = identity.with_suffix(".pem")
    certificate.write_bytes(certificates.issue(issuer, identity, role, days)[0])
    revoked = folder / "revoked"
    revoked.touch()
    return Tls(certificate, identity, issuer.with_suffix(".pem"), revoked), number
