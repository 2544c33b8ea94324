"""Derivative rules as a table, and the walks that follow it."""
