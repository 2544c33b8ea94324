"""Loops in reverse: residuals, segments, slots."""
