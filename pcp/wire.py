"""What both halves know of the wire: the planner prices what the runtime does."""

import math
from typing import NamedTuple

EAGER_BYTES = 32 << 10
"""Contributions up to this size travel with the first frame of an operation.

So small sums go to every member at once, without a ring.
"""
FAR_SECONDS = 0.005
"""Members with a longer round trip are far.

A message to them takes longer than copying what it announces.
"""
FEW_MEMBERS = 16
"""Up to so many members each tells all others of an operation and of its vote.

Beyond, they agree along a tree (`runtime/collectives/agreement.py`), and small sums go
along it, too.
"""
_FILLS = 2
"""A ring's step is large beyond so many times what a link carries in a round trip."""


class Distance(NamedTuple):
    """How far members are from each other, as it was measured.

    All members know the same, or they would follow different schedules.
    """

    round_trip: float
    """Seconds."""
    bandwidth: float = 0.0
    """Bytes a second of a member; 0: not known."""

    def small(self, nbytes: float) -> bool:
        """Whether a step of so many bytes is mostly its round trip."""
        if self.round_trip < FAR_SECONDS:
            return False
        carried = self.round_trip * (self.bandwidth or math.inf)
        return nbytes <= _FILLS * carried
