"""What both halves know of the wire: the planner prices what the runtime does."""

EAGER_BYTES = 32 << 10
"""Contributions up to this size travel with the first frame of an operation.

So small sums go to every member at once, without a ring.
"""
