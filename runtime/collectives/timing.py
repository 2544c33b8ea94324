"""When an operation reached what, and how many bytes it moved.

An operation writes it; metrics, traces and health read it.
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
    """All peers have joined."""
    first: float = 0.0
    """The first byte of a peer is in its place."""
    voted: float = 0.0
    """The local part is done."""
    ended: float = 0.0
    sent: int = 0
    received: int = 0
    joined: dict[int, float] = field(default_factory=dict)
    """When each peer had joined, as this member saw it."""


class Timed(Protocol):
    """What is counted and drawn of an operation that is over."""

    @property
    def name(self) -> str:
        """The kind of collective."""
        ...

    @property
    def descriptor(self) -> Mapping[str, Any]:
        """What its members agreed on."""
        ...

    @property
    def label(self) -> str:
        """The caller's tag."""
        ...

    @property
    def timing(self) -> Timing:
        """Its moments."""
        ...

    @property
    def error(self) -> Exception | None:
        """Why it did not happen."""
        ...
