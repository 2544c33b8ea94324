"""Foreign StableHLO made regular, with a role for each argument."""
