"""Which of several shepherds of a run leads, and that the others have its ledger."""
