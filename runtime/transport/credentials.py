"""The credentials of all connections of a group: a key, a certificate, or neither.

    everything = Protection(key=b"...", tls=Tls("member.pem", "member.key", "ca.pem"))

The key is checked in `authentication`, the certificate in `tls`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pcp.runtime.transport import authentication
from pcp.runtime.transport.link import Wire
from pcp.runtime.transport.peer_identity import MEMBERS

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls


@dataclass(frozen=True)
class Protection:
    """A key and a certificate, for all connections of a group or a run, or for none."""

    key: bytes | str | None = None
    tls: "Tls | None" = None

    def check(self) -> None:
        """ConfigError now if the key is too short, or the files do not fit together."""
        authentication.checked(self.key)
        if self.tls is not None:
            self.tls.check()

    @property
    def options(self) -> dict[str, Any]:
        """The credentials as keywords of `Endpoint.listen` and `fetch_snapshot`."""
        return {"key": self.key, "tls": self.tls}

    def dial(
        self, address: str, timeout: float, roles: Collection[str] = MEMBERS
    ) -> Wire:
        """A connected wire to a listener with the same protection, in such a role.

        ProtocolError, with the reason, when one end refuses the other.
        """
        key = authentication.checked(self.key)
        return authentication.dial(address, timeout, key, self.tls, roles=roles)
