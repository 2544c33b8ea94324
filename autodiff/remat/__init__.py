"""Recomputation in place of kept values."""
