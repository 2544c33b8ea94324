"""What tests of the compiler share."""

from helpers.servers.isolated import elsewhere

__all__ = ["elsewhere"]
