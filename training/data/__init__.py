"""The corpus, its samples in order, and leases on them."""
