"""Generators of programs."""
