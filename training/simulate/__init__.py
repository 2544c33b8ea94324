"""Simulation and replay: a run on a virtual clock, and a run from its ledger."""
