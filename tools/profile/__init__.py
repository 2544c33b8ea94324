"""Where the time of a compiled function goes, dispatch by dispatch."""
