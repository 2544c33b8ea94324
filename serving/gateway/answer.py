"""One answer as it comes: pieces of text, each with its tokens, and then an end."""

import asyncio
from dataclasses import dataclass, field

from pcp.serving.events import Reason, Request
from pcp.serving.interface import Sampled
from pcp.serving.tokens.detokenizer import Detokenizer
from pcp.serving.tokens.grammar import Constraint
from pcp.serving.tokens.stop_strings import StopStrings
from pcp.serving.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of an answer, and the token that came with it; None behind the last."""

    text: str
    sampled: Sampled | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an answer: why, and what was computed for it."""

    reason: Reason
    prompt: int = 0
    tokens: int = 0
    reused: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request and what becomes of its tokens: text, stop strings, a form."""

    request: Request
    index: int = 0
    """Of the choice, among those of one client's request."""
    stop_strings: tuple[str, ...] = ()
    constraint: Constraint | None = None
    special: bool = False
    """Whether the text shows special tokens."""


Inbox = asyncio.Queue[tuple[int, Piece | Ended]]
"""Where the answers of one client come in, each with its index."""


class Answer:
    """The answer to one request. Of the event loop's thread alone."""

    def __init__(
        self, ask: Ask, tokenizer: Tokenizer, inbox: Inbox, now: float
    ) -> None:
        self.ask, self.asked = ask, now
        self.newest = now
        """When the newest token came."""
        self.tokens = 0
        self.dropped = 0
        """Tokens that came behind a stop string, with it."""
        self._text = Detokenizer(tokenizer, ask.request.prompt, special=ask.special)
        self._stops = StopStrings(ask.stop_strings)
        self._inbox = inbox

    @property
    def number(self) -> int:
        """The request's."""
        return self.ask.request.number

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended it."""
        return self._stops.found is not None

    def push(self, sampled: Sampled) -> bool:
        """A token came; whether its text ended the answer."""
        if self.stopped:
            self.dropped += 1
            return False
        if self.ask.constraint is not None:
            self.ask.constraint.push(sampled.token)
        self.tokens += 1
        self._put(Piece(self._stops.push(self._text.push(sampled.token)), sampled))
        return self.stopped

    def end(self, ended: Ended) -> None:
        """No more tokens come."""
        if not self.stopped:
            text = self._stops.push(self._text.finish())
            if self._stops.found is None:
                text += self._stops.finish()
            if text:
                self._put(Piece(text))
        self._put(ended)

    def _put(self, item: Piece | Ended) -> None:
        self._inbox.put_nowait((self.ask.index, item))


@dataclass
class Whole:
    """A whole answer, for who does not want it in pieces."""

    text: str = ""
    sampled: list[Sampled] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Where in the text each token's piece begins."""
    ended: Ended | None = None

    def add(self, item: Piece | Ended) -> None:
        """What came next."""
        if isinstance(item, Ended):
            self.ended = item
            return
        if item.sampled is not None:
            self.sampled.append(item.sampled)
            self.starts.append(len(self.text))
        self.text += item.text


async def read_whole(inbox: Inbox, count: int) -> list[Whole]:
    """Answers 0 to `count`, when all have ended."""
    answers = [Whole() for _ in range(count)]
    while any(answer.ended is None for answer in answers):
        index, item = await inbox.get()
        answers[index].add(item)
    return answers
