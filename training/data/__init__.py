"""Datasets, the order of their samples, their digest, and leases on them."""
