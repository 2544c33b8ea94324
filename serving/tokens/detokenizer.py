"""Tokens to text as they come, in whole characters.

A token need not end where a character does. What was sent never ends inside one: a
replacement character at the end may still become another one, and is kept back until
more tokens come, or none. A token's text may depend on its left neighbours (a leading
space), so a piece is what the newest tokens add to the text of those before them.
"""

from collections.abc import Sequence
from functools import partial

from pcp.serving.tokens.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_UNFINISHED = 3
"""Bytes of a character in UTF-8 without its last one, at most."""
_NEIGHBOURS = 6
"""Tokens of a prompt that a first token's text may depend on."""


class Detokenizer:
    """The text of one answer, token by token."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        *,
        special: bool = False,
    ) -> None:
        self._decode = partial(tokenizer.decode, special=special)
        self._window = list(prompt[-_NEIGHBOURS:])
        self._before = len(self._window)
        """Tokens of the window that are there for their neighbours' sake."""
        self._sent = len(self._decode(self._window))
        """Characters of the window's text that were sent."""

    def push(self, token: int) -> str:
        """The text that is whole now; "" for a part of a character."""
        self._window.append(token)
        text = self._decode(self._window)
        tail = text[-_UNFINISHED:]
        held = len(tail) - len(tail.rstrip(_REPLACEMENT))
        piece = text[self._sent : len(text) - held]
        self._sent += len(piece)
        if not held:
            del self._window[: self._before]
            self._before = len(self._window)
            self._sent = len(self._decode(self._window))
        return piece

    def finish(self) -> str:
        """What was kept back: no more tokens come."""
        return self._decode(self._window)[self._sent :]
