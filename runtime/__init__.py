"""A bundle runs on machines that fail."""
