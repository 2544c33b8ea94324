"""The local part of an operation: which data moves, and what it becomes.

`Operation` has the part that all collectives share: it announces, votes, and gives up.
"""

from collections.abc import Iterable
from typing import Any

from pcp.errors import ProtocolError
from pcp.runtime.transport.frame import Header
from pcp.runtime.transport.incoming import Flow


class LocalPart:
    """The methods that a collective defines. All run in the loop's thread."""

    votes = True
    """Whether members vote on the outcome before any of them commits."""
    buffered = False
    """Whether the operation may be over on this member before the peers join it."""
    bulk = 0
    """About how many bytes one step of the operation processes; 0 for few."""
    free: frozenset[str] = frozenset()
    eager_data = True
    """Whether the eager payload is data of the caller, for the counters."""

    descriptor: dict[str, Any]
    """The facts that all members must agree on."""

    @property
    def name(self) -> str:
        """The kind of the collective, for messages."""
        return str(self.descriptor["kind"])

    def prepare(self) -> None:
        """Complete the descriptor, before it is sent."""

    def eager(self, peer: int) -> memoryview | bytes:
        """The payload that travels with the OPEN frame to `peer`."""
        return b""

    @property
    def partners(self) -> Iterable[int] | None:
        """The peers that data goes to or comes from; None for all."""
        return None

    def begin(self) -> None:
        """Queue the frames that can be sent now (`send_data` waits for the peers)."""

    def accept(self, peer: int, payload: memoryview) -> None:
        """Take the eager payload of a peer that opened."""

    def place(self, peer: int, header: Header) -> memoryview:
        """The memory for a DATA frame; ProtocolError when it is not expected."""
        raise ProtocolError(f"{self.name} moves no bulk data")

    def flow(self, peer: int, header: Header) -> Flow | None:
        """The receiver of a payload that is processed as it comes; None: `place`."""
        return None

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        """Handle a DATA frame whose payload is in its memory, or went into its flow."""

    def complete(self) -> bool:
        """Whether all expected data has arrived."""
        return True

    def commit(self) -> Any:
        """Write the caller's array; the value of the operation."""
        return None

    def release(self) -> None:
        """Give buffers back; called once, after the end."""
