"""What all parts of a communicator are built on: a place in a group, and `_post`."""

import math
from datetime import timedelta

import numpy as np

from pcp.errors import UsageError
from pcp.runtime.collectives.build import Seat
from pcp.runtime.collectives.operation import Operation, Pending

Seconds = float | timedelta | None
"""How long a call may take; None: as the communicator says."""


def seconds(value: float | timedelta) -> float:
    """A duration in seconds; UsageError for what no clock ever reaches."""
    if not isinstance(value, timedelta | int | float | np.number):
        raise UsageError(f"a timeout is a number of seconds, not {value!r}")
    given = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if math.isnan(given):
        raise UsageError("a timeout of nan seconds would never be over")
    return given


class Posting:
    """A part of a communicator: it makes operations, the whole one posts them."""

    _seat: Seat

    def _patience(self, timeout: Seconds) -> float:
        """Seconds that an operation may take."""
        raise NotImplementedError

    def _post(self, operation: Operation, tag: str, turn: int | None = None) -> Pending:
        """Start an operation, number `turn` of its tag, or the next one."""
        raise NotImplementedError
