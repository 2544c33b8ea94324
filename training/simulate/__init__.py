"""A run on a virtual clock and network, and a run made again from its ledger."""
