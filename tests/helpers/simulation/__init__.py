"""Groups and runs on a virtual clock."""
