"""The identity of a peer in its certificate: a role in a run, and an id.

An authority that `pcp keys issuer` made has the run's namespace in its name, and signs
certificates for identities, each with a URI: `pcp://NAMESPACE/ROLE/ID`. Where a member
trusts such an authority, it admits a peer only with a certificate of the namespace, in
a role with the right to its messages:

    shepherd   is obeyed by workers; may do what all others may
    worker     trains: exchanges with members, and says hello to a shepherd
    operator   gives orders, and reads
    reader     asks for the status of a run

Ids in the list of revoked ones are refused, as soon as they are in it. Certificates of
another kind of authority have no roles, and no role is checked.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pcp.errors import ConfigError
from pcp.runtime.transport.link import Untrusted

ISSUER = "pcp issuer"
"""The organisation of the authorities that sign identities."""
ROLES = ("shepherd", "worker", "operator", "reader")
MEMBERS = ("shepherd", "worker")
"""The roles in which a process exchanges with others."""


@dataclass(frozen=True)
class PeerIdentity:
    """A role in a namespace, and the id of the key that has it."""

    namespace: str
    role: str
    id: str

    @property
    def uri(self) -> str:
        """The identity as the URI in a certificate."""
        return f"pcp://{quote(self.namespace, safe='')}/{self.role}/{self.id}"


def is_id(text: str) -> bool:
    """Whether this can be the id of an identity."""
    return re.fullmatch("[a-z2-7]{32}", text) is not None


def of_uri(uri: str) -> PeerIdentity | None:
    """The identity in a URI, if it is one."""
    parts = urlsplit(uri)
    words = parts.path.split("/")
    if parts.scheme != "pcp" or len(words) != 3 or words[1] not in ROLES:
        return None
    return PeerIdentity(unquote(parts.netloc), words[1], words[2])


def of_certificate(certificate: Mapping[str, Any] | None) -> PeerIdentity | None:
    """The identity in a certificate as `ssl` gives it; None if it has not just one."""
    names = (certificate or {}).get("subjectAltName", ())
    found = [of_uri(value) for kind, value in names if kind == "URI"]
    return found[0] if len(found) == 1 else None


def namespace_of(authorities: Collection[Mapping[str, Any]]) -> str | None:
    """The namespace whose identities these authorities sign, or None."""
    for authority in authorities:
        name = dict(pair for part in authority.get("subject", ()) for pair in part)
        if name.get("organizationName") == ISSUER:
            return name.get("commonName")
    return None


def check(
    peer: PeerIdentity | None,
    namespace: str,
    roles: Collection[str],
    revoked: Collection[str],
) -> None:
    """`Untrusted` unless a peer of this namespace is in one of these roles."""
    if peer is None or peer.namespace != namespace:
        raise Untrusted(f"its certificate is not of the namespace {namespace!r}")
    if peer.id in revoked:
        raise Untrusted(f"its identity {peer.id} is revoked")
    if peer.role not in roles:
        wanted = " or ".join(sorted(roles))
        raise Untrusted(f"its certificate is for the role {peer.role}, not {wanted}")


class RevocationList:
    """The ids in a file, one a line; a new line counts at once."""

    def __init__(self, path: str | Path | None) -> None:
        self._path = None if path is None else Path(path)
        self._read: tuple[int, int] | None = None
        self._ids: frozenset[str] = frozenset()

    def ids(self) -> frozenset[str]:
        """The present ids; ConfigError where the list cannot be read."""
        if self._path is None:
            return self._ids
        try:
            stamp = self._path.stat()
            at = (stamp.st_mtime_ns, stamp.st_size)
            if at != self._read:
                lines = self._path.read_text(encoding="utf-8").splitlines()
                words = (line.partition("#")[0].strip() for line in lines)
                self._ids, self._read = frozenset(filter(None, words)), at
        except OSError as error:
            raise ConfigError(
                f"{self._path}: cannot read who is revoked: {error.strerror}"
            ) from error
        return self._ids
