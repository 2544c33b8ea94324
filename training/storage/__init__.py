"""The storage of a run: the ledger, checkpoints, tensors in files."""
