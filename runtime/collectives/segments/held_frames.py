"""Data of an operation that waits until its peer has opened.

Some data goes to a far peer before that, within bounds; the peer keeps it as unexpected
frames (`pcp.runtime.group.unexpected_frames`).
"""

from typing import Protocol

from pcp.runtime.transport.frame import Frame


class AheadBounds(Protocol):
    """Bounds of a group for data that goes to peers before they open."""

    def run_ahead(self, peer: int, nbytes: int) -> int:
        """Reserve room for data at a peer before it opens: the cost, 0 to wait."""
        ...

    def caught_up(self, peer: int, cost: int) -> None:
        """Return room of this cost: the peer keeps its data no longer."""
        ...


class HeldFrames:
    """The frames of one operation for peers that have not opened."""

    def __init__(self) -> None:
        self._frames: dict[int, list[Frame]] = {}
        self._ahead: dict[int, int] = {}
        """Room taken at peers that had not opened."""

    def hold(self, peer: int, frame: Frame) -> None:
        """Keep a frame until its peer opens."""
        self._frames.setdefault(peer, []).append(frame)

    def goes_ahead(self, group: AheadBounds, peer: int, nbytes: int) -> bool:
        """Whether data may go to a peer before it opens; never past a held frame."""
        if peer in self._frames:
            return False
        booked = group.run_ahead(peer, nbytes)
        self._ahead[peer] = self._ahead.get(peer, 0) + booked
        return booked > 0

    def caught_up(self, group: AheadBounds, peer: int) -> None:
        """Return the room taken at a peer, which has opened."""
        if booked := self._ahead.pop(peer, 0):
            group.caught_up(peer, booked)

    def take(self, peer: int) -> list[Frame]:
        """Remove and return the frames for a peer."""
        return self._frames.pop(peer, [])

    def drop(self, group: AheadBounds | None) -> None:
        """Drop all frames, and return all room: the operation is over."""
        self._frames.clear()
        if group is not None:
            for peer, cost in self._ahead.items():
                group.caught_up(peer, cost)
