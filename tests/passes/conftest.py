"""What tests of passes share."""

from helpers.servers.isolated import elsewhere

__all__ = ["elsewhere"]
