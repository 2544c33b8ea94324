"""Programs to their derivatives."""
