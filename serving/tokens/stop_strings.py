"""Stop strings: an answer ends before the first of them, wherever its tokens end.

Text that may be the beginning of a stop string is kept back until it is known.
"""

from collections.abc import Sequence


class StopStrings:
    """Looks for strings in a text that comes in pieces."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [string for string in strings if string]
        self._held = ""
        self.found: str | None = None
        """The string that ended the text."""

    def push(self, text: str) -> str:
        """What of the text so far can be sent; `found` is set at its end."""
        text = self._held + text
        hits = [(text.find(s), s) for s in self._strings if s in text]
        if hits:
            at, self.found = min(hits)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, s) for s in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was kept back: no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """How many characters at the end of a text begin a string."""
    lengths = range(min(len(text), len(string) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(string[:n])), 0)
