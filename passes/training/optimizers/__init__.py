"""Optimizers as StableHLO: one file an update rule."""
