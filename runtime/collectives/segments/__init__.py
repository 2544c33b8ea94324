"""Segments of data on their way: held, taken as they come, moved by a compiled loop."""
