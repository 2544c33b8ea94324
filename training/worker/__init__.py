"""A worker: rounds with the others, and recovery."""
