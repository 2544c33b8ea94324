"""Factorizations that JAX leaves to LAPACK, written with what StableHLO has."""
