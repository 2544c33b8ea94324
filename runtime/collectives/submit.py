"""What all parts of a communicator are built on: a place in a group, and `_post`."""

from datetime import timedelta

from pcp.runtime.collectives.build import Seat
from pcp.runtime.collectives.operation import Operation, Pending

Seconds = float | timedelta | None
"""How long a call may take; None: as the communicator says."""


class Posting:
    """A part of a communicator: it makes operations, the whole one posts them."""

    _seat: Seat

    def _patience(self, timeout: Seconds) -> float:
        """Seconds that an operation may take."""
        raise NotImplementedError

    def _post(self, operation: Operation, tag: str, turn: int | None = None) -> Pending:
        """Start an operation, number `turn` of its tag, or the next one."""
        raise NotImplementedError
