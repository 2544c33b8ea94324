"""Collective operations: descriptors, algorithms, schedules, and their metrics."""
