"""Programs as IREE compiles them, and computes them right."""
