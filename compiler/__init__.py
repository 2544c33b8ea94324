"""A pipeline and a target become a Bundle."""
