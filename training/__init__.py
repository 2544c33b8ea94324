"""Loops over a runtime: state that outlives a step."""
