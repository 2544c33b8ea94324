"""The part of a group that an operation uses."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pcp.runtime.collectives.segments.compiled_moves import CompiledLoop
from pcp.runtime.collectives.segments.held_frames import AheadBounds
from pcp.runtime.transport.event_loop import Timer
from pcp.runtime.transport.frame import Frame


class Members(AheadBounds, Protocol):
    """The part of a group that an operation uses."""

    rank: int
    world_size: int
    epoch: int

    def send(self, peer: int, frame: Frame) -> None:
        """Queue a frame to a member."""
        ...

    def suits(self, peer: int) -> int:
        """The bytes of the largest payload that suits the link to a member."""
        ...

    def compiled_loop(self, peers: Iterable[int]) -> CompiledLoop | None:
        """The compiled loop over the links to these members; None if there is none."""
        ...

    def recall(self, peer: int, tag: int, seq: int) -> None:
        """Drop an operation's queued data."""
        ...

    def later(self, delay: float, what: Callable[[], None]) -> Timer:
        """Run something later in the loop's thread."""
        ...

    def retire(self, operation: Any) -> None:
        """Forget an operation that is over."""
        ...

    def arbitrate(self, operation: Any) -> bool:
        """Have an operation with our vote decided; False without an arbiter."""
        ...

    @property
    def under_way(self) -> list[Any]:
        """The operations that were posted and are not over, in that order."""
        ...
