"""Whole models, and the bundles made of them."""
