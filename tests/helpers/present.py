"""A value that may be absent, where a test knows that it is there."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value; None fails the test."""
    assert value is not None
    return value
