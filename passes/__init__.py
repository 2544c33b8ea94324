"""Programs to programs: one file a pass."""
