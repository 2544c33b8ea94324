"""Time limits of calls, as callers give them."""

import math
from datetime import timedelta

import numpy as np

from pcp.errors import UsageError

Seconds = float | timedelta | None
"""The time limit of a call; None for the communicator's."""


def seconds(value: float | timedelta) -> float:
    """A duration in seconds; UsageError if it is no number."""
    if not isinstance(value, timedelta | int | float | np.number):
        raise UsageError(f"a timeout is a number of seconds, not {value!r}")
    given = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if math.isnan(given):
        raise UsageError("a timeout of nan seconds would never be over")
    return given
