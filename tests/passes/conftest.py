"""What tests of passes share."""

from helpers.elsewhere import elsewhere

__all__ = ["elsewhere"]
