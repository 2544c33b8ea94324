"""Derivative rules, one file a chapter of the StableHLO specification."""
