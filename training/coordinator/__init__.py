"""The shepherd: membership of a run, leases, commits, checkpoints."""
