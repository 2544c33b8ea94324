"""How long a call may take, as callers say it."""

import math
from datetime import timedelta

import numpy as np

from pcp.errors import UsageError

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
