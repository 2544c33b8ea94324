"""Which file an error is about.

Locations in text that was parsed from memory say `-`, as those from stdin do.
"""

import re

#: At the start of a message, or in it with a line: `-: op`, `at -:13:26`.
_UNNAMED = re.compile(r"\A-(?=:)|(?<!\S)-(?=:\d+:\d)")


def with_source(message: str, source: str) -> str:
    """The message with the model's file in all of its locations."""
    return _UNNAMED.sub(lambda _: source, message)
