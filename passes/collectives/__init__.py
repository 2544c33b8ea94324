"""Collectives bucketed, compressed, overlapped, and lowered."""
