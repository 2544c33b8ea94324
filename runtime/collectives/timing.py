"""The moments of an operation, and the bytes that it moved.

An operation writes them; metrics, traces and health read them.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(slots=True)
class Timing:
    """The moments (monotonic seconds, 0 when not reached) and bytes of an operation."""

    posted: float = field(default_factory=time.monotonic)
    opened: float = 0.0
    """When all peers had opened that this member waits for."""
    first: float = 0.0
    """When the first data of a peer had arrived."""
    voted: float = 0.0
    """When the local part was done."""
    ended: float = 0.0
    sent: int = 0
    received: int = 0
    joined: dict[int, float] = field(default_factory=dict)
    """When each of these peers had opened, as this member saw it."""

    def join(
        self, peer: int, nbytes: int, *, last: bool, now: float | None = None
    ) -> None:
        """Note that a peer opened, and so many bytes of data in its frame."""
        now = self.joined[peer] = now or time.monotonic()
        if nbytes:
            self.receive(nbytes, now)
        if last:
            self.opened = now

    def receive(self, nbytes: int, now: float | None = None) -> None:
        """Note data of a peer."""
        self.received += nbytes
        if not self.first:
            self.first = now or time.monotonic()


class TimedOperation(Protocol):
    """The facts of an operation that is over, for metrics and traces."""

    @property
    def name(self) -> str:
        """The kind of collective."""
        ...

    @property
    def descriptor(self) -> Mapping[str, Any]:
        """The descriptor of the operation."""
        ...

    @property
    def label(self) -> str:
        """The caller's tag."""
        ...

    @property
    def timing(self) -> Timing:
        """The moments of the operation."""
        ...

    @property
    def error(self) -> Exception | None:
        """The fault of the operation; None if it happened."""
        ...
