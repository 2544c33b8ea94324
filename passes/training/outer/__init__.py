"""Outer (low-communication) algorithms as StableHLO and pcp collectives."""
