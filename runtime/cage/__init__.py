"""The cage: what the kernel keeps from a process that runs foreign native code."""
