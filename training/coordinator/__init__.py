"""The state machine of a run: members, leases, commits, recovery."""
