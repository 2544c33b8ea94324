"""What tests of the compiler share."""

from helpers.elsewhere import elsewhere

__all__ = ["elsewhere"]
