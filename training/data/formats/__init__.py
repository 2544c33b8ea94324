"""Datasets by format: one file a format, and the table of them."""
