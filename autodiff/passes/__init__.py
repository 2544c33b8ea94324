"""Passes that add derivatives to a module, and check them."""
