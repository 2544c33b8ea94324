"""Sorts: stable, and of many elements in less than their square of time."""
