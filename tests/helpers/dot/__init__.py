"""Directional tests of derivative rules."""
