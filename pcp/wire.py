"""What both halves know of the wire: the planner prices what the runtime does."""

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
