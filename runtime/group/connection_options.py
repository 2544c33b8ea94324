"""Connection options: one value for all functions that make connections.

Public functions take them as keywords, `**options: Unpack[ConnectionKeywords]`,
and `expanded` shows them in the function's signature:

    @expanded(ConnectionOptions())
    def connect(address: str, **options: Unpack[ConnectionKeywords]) -> ...:
        chosen = ConnectionOptions().changed(options)
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_args

from pcp.errors import ConfigError
from pcp.runtime.group.failure_detector import HeartbeatOptions
from pcp.runtime.transport import authentication
from pcp.runtime.transport.fault_injection import FaultPlan
from pcp.runtime.transport.striped import MAX_STREAMS, Streams

if TYPE_CHECKING:
    from pcp.runtime.transport.tls import Tls

Checksum = Literal["xxh3", "none"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ConnectionOptions:
    """Times of the failure detector, credentials, and the carriers of links.

    ConfigError for a wrong number of streams, or a key that is too short.
    """

    heartbeat: float = 0.5
    """A link that sent no frame for so many seconds sends a PING."""
    silence: float = 10.0
    """A peer whose link has brought no byte for so many seconds is lost."""
    faults: FaultPlan | None = None
    """Faults that are injected, in drills."""
    shared_memory: bool = True
    """Between members on one machine large payloads go through memory."""
    key: bytes | str | None = field(default=None, repr=False)
    """The key that every peer must have (`authentication`)."""
    streams: Streams = "auto"
    """Streams to each peer (`striped`)."""
    tls: "Tls | None" = None
    """Encryption of all connections, with certificates of both ends (`tls`)."""
    checksum: Checksum = "xxh3"
    """The checksum of bulk data over TCP; "none" leaves damage to TCP's own."""

    def __post_init__(self) -> None:
        if self.checksum not in get_args(Checksum):
            kinds = " or ".join(map(repr, get_args(Checksum)))
            raise ConfigError(f"checksum={self.checksum!r}: give {kinds}")
        if self.streams != "auto" and not 1 <= self.streams <= MAX_STREAMS:
            raise ConfigError(
                f"streams={self.streams}: give 1 to {MAX_STREAMS}, or 'auto'"
            )
        object.__setattr__(self, "key", authentication.checked(self.key))

    @property
    def heartbeat_options(self) -> HeartbeatOptions:
        """The times of the failure detector."""
        return HeartbeatOptions(self.heartbeat, self.silence)

    @property
    def link_checksum(self) -> Checksum:
        """The checksum of bulk data: TLS authenticates every byte already."""
        return "none" if self.tls is not None else self.checksum

    @property
    def secret(self) -> authentication.Key:
        """The key as bytes."""
        return authentication.checked(self.key)

    def of_pcp_alone(self) -> dict[str, Any]:
        """The options that other engines lack; None where one is not set."""
        streams = None if self.streams == "auto" else self.streams
        return {
            "faults": self.faults,
            "key": self.key,
            "tls": self.tls,
            "streams": streams,
            "checksum": None if self.checksum == "xxh3" else self.checksum,
        }

    def changed(self, given: "ConnectionKeywords") -> "ConnectionOptions":
        """These options with the given ones changed; TypeError for other keywords."""
        return replace(self, **given)


class ConnectionKeywords(TypedDict, total=False):
    """The fields of `ConnectionOptions`, as keywords."""

    heartbeat: float
    silence: float
    faults: FaultPlan | None
    shared_memory: bool
    key: bytes | str | None
    streams: Streams
    tls: "Tls | None"
    checksum: Checksum


def expanded(defaults: Any) -> Callable[[F], F]:
    """Show the fields of `defaults` in place of a function's `**options`.

    For `help`, editors and `inspect.signature`; calls are not affected.
    """

    def show(function: F) -> F:
        plain = inspect.signature(function)
        kept = [p for p in plain.parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(defaults, one.name),
                annotation=one.type,
            )
            for one in fields(defaults)
        ]
        signature = plain.replace(parameters=[*kept, *options])
        vars(function)["__signature__"] = signature
        return function

    return show
