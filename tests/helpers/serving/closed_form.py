"""An engine whose next token follows from all tokens before it, in closed form.

It holds what a real one holds, a cache by slot, and takes nothing on trust: a piece
that starts behind the end of its slot's cache, a step whose token was not the one
sampled, a slot twice in a tick, are errors. So a scheduler that is wrong by one
position, one slot or one token gives other tokens than `answer`, or an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pcp.errors import ConfigError, UsageError
from pcp.serving.interface import Chunk, EngineLost, Sampled, Sampling, Step, Tick

_PRIME = 1_000_003


def next_token(
    tokens: Sequence[int],
    sampling: Sampling,
    vocabulary: int,
    mask: bytes | None = None,
) -> int:
    """The token behind `tokens`; the first allowed one from there on."""
    state = 0
    for token in tokens:
        state = (state * 31 + token + 7) % _PRIME
    return _token(state, len(tokens), sampling, vocabulary, mask)


def _token(
    state: int, position: int, sampling: Sampling, vocabulary: int, mask: bytes | None
) -> int:
    """The token that is drawn, or the next one behind it that the mask allows."""
    drawn = (state * 7919 + sampling.seed * 104729 + position * 31) % _PRIME
    token = drawn % vocabulary
    if mask is None:
        return token
    order = (*range(token, vocabulary), *range(token))
    return next(t for t in order if mask[t // 8] >> t % 8 & 1)


def answer(
    prompt: Sequence[int],
    limit: int,
    stop: frozenset[int],
    *,
    sampling: Sampling,
    vocabulary: int,
    context: int,
) -> tuple[list[int], str]:
    """All tokens that a request is sent, and why it ends, when nothing disturbs it."""
    tokens = list(prompt)
    while True:
        token = next_token(tokens, sampling, vocabulary)
        tokens.append(token)
        made = tokens[len(prompt) :]
        if token in stop:
            return made[:-1], "stop"
        if len(made) >= limit or len(tokens) >= context:
            return made, "length"


class _Row:
    """A slot: its tokens, and the state of the model behind each."""

    def __init__(self) -> None:
        self.states = [0]
        self.request: int | None = None
        self.sampled: int | None = None

    def put(self, start: int, tokens: Sequence[int]) -> None:
        if not 0 <= start < len(self.states):
            held = len(self.states) - 1
            raise UsageError(f"tokens from {start} on, where the cache has {held}")
        del self.states[start + 1 :]
        for token in tokens:
            self.states.append((self.states[-1] * 31 + token + 7) % _PRIME)


@dataclass
class Prepared:
    """Weights, and what became of them."""

    folder: str
    served: bool = False
    closed: bool = False

    def close(self) -> None:
        """Nobody serves them."""
        self.closed = True


class ClosedForm:
    """The engine. `lose` makes the next tick fail, as the death of a rank does."""

    model = "closed-form"

    def __init__(
        self, slots: int = 4, context: int = 64, chunk: int = 8, vocabulary: int = 97
    ) -> None:
        self.slots, self.context, self.chunk = slots, context, chunk
        self.vocabulary = vocabulary
        self.lost = False
        self.lose = False
        self.closed = False
        self.recoveries = self.ticks = self.computed = 0
        self.prepared: list[Prepared] = []
        self._rows = [_Row() for _ in range(slots)]

    def tick(self, tick: Tick) -> list[Sampled]:
        """Compute what is asked, or say what contradicts the cache."""
        self.ticks += 1
        if self.lose or self.lost:
            self.lose, self.lost = False, True
            raise EngineLost("a rank was lost")
        pieces = (*tick.chunks, *tick.steps)
        slots = [piece.slot for piece in pieces]
        if not pieces or len({*slots}) != len(slots) or len(slots) > self.slots:
            raise UsageError(f"a tick of slots {slots}")
        chunks = [self._chunk(piece) for piece in tick.chunks]
        steps = [self._step(piece) for piece in tick.steps]
        return [sampled for sampled in (*chunks, *steps) if sampled is not None]

    def recover(self) -> None:
        """Empty slots."""
        self._rows = [_Row() for _ in range(self.slots)]
        self.lost = False
        self.recoveries += 1

    def prepare(self, folder: str) -> "Prepared":
        """Of a folder named `wrong` nothing can be read."""
        if folder == "wrong":
            raise ConfigError(f"{folder}: the files have no w")
        self.prepared.append(Prepared(folder))
        return self.prepared[-1]

    def swap(self, prepared: "Prepared") -> None:
        """Serve them; the tokens are the same."""
        prepared.served = True
        self.recover()

    def close(self) -> None:
        """Nothing is held."""
        self.closed = True

    def describe(self) -> dict[str, Any]:
        """What operators see."""
        return {"mesh": {"tp": 1}, "ranks": [{"rank": 0}], "epoch": self.recoveries}

    def _chunk(self, chunk: Chunk) -> Sampled | None:
        if not 0 < len(chunk.tokens) <= self.chunk:
            raise UsageError(f"a chunk of {len(chunk.tokens)} tokens")
        row = self._rows[chunk.slot]
        if chunk.start and not chunk.adopt and row.request != chunk.request:
            raise UsageError(f"{chunk}, and the slot is of {row.request}")
        self._fill(row, chunk.start, chunk.tokens)
        row.request, row.sampled = chunk.request, None
        return self._sample(chunk, row) if chunk.last else None

    def _step(self, step: Step) -> Sampled:
        row = self._rows[step.slot]
        newest = step.token if row.sampled is None else row.sampled
        wanted = (row.request, newest, len(row.states) - 1)
        if wanted != (step.request, step.token, step.position):
            raise UsageError(f"{step}, where request, token, position are {wanted}")
        self._fill(row, step.position, (step.token,))
        return self._sample(step, row)

    def _fill(self, row: _Row, start: int, tokens: Sequence[int]) -> None:
        row.put(start, tokens)
        self.computed += len(tokens)
        if len(row.states) - 1 > self.context:
            raise UsageError(f"{len(row.states) - 1} tokens in a slot")

    def _sample(self, piece: Chunk | Step, row: _Row) -> Sampled:
        state, position = row.states[-1], len(row.states) - 1
        sampling, v = piece.sampling, self.vocabulary
        row.sampled = token = _token(state, position, sampling, v, piece.mask)
        likely = [(token + i) % v for i in range(sampling.top_logprobs)]
        top = tuple((t, -0.5 - i) for i, t in enumerate(likely))
        return Sampled(piece.slot, token, -0.5, top)
