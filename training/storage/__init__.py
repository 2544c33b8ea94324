"""What a run keeps: the ledger, checkpoints, tensors in files."""
