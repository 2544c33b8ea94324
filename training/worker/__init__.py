"""A worker: rounds with other members, and recovery."""
