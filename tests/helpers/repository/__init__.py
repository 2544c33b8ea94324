"""The repository and its documents as data."""
