"""Which tensors IREE may write over: what it does not see, or not soon enough."""
