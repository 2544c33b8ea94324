"""Speculative decoding: tokens that are drafted, and looked at in one call.

A drafter says which tokens may follow a request's; one call of the model computes all
of them, and the sampler goes along their rows as long as the token it takes is the one
that was drafted (Leviathan et al. 2023, arXiv:2211.17192, with the draw of this model
in place of a new one: what is drawn follows from seed and position, so the answer is
the one without drafts, token by token, greedy or not).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pcp.serving.interface import Chunk, Engine, Sampled, Sampling, Step, Tick

_LONGEST_MATCH = 4
_GREEDY = Sampling()
_REQUEST = 0

Drafted = Mapping[int, Sequence[int]]
"""By slot, the tokens that may follow; none for a slot that it does not name."""


class Drafter(Protocol):
    """What says which tokens may follow."""

    def draft(self, tokens: Mapping[int, Sequence[int]], count: int) -> Drafted:
        """At most `count` tokens behind those of each slot."""
        ...

    def describe(self) -> str:
        """What it is, for operators."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class PromptLookup:
    """Copies what followed the newest tokens where they stood before.

    Of the longest match of at most four tokens, the last one: answers that quote, edit
    or repeat are found so without a model (Saxena 2023, prompt lookup decoding).
    """

    def draft(self, tokens: Mapping[int, Sequence[int]], count: int) -> Drafted:
        """See `Drafter.draft`."""
        return {slot: _following(list(own), count) for slot, own in tokens.items()}

    def describe(self) -> str:
        """See `Drafter.describe`."""
        return "lookup"

    def close(self) -> None:
        """Nothing is held."""


def _following(tokens: list[int], count: int) -> list[int]:
    for length in range(min(_LONGEST_MATCH, len(tokens) - 1), 0, -1):
        newest = tokens[-length:]
        for at in range(len(tokens) - length - 1, -1, -1):
            if tokens[at : at + length] == newest:
                return tokens[at + length : at + length + count]
    return []


class DraftModel:
    """A smaller model with the same vocabulary, on an engine with as many slots.

    Its caches follow by themselves: what a slot's tokens have in common with those that
    its cache holds stays, the others are computed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: dict[int, list[int]] = {}

    def draft(self, tokens: Mapping[int, Sequence[int]], count: int) -> Drafted:
        """See `Drafter.draft`."""
        room = self._engine.context
        whole = {s: list(own) for s, own in tokens.items() if len(own) < room}
        found: dict[int, list[int]] = {slot: [] for slot in whole}
        missing = {slot: self._missing(slot, own) for slot, own in whole.items()}
        for _ in range(count):
            for slot, token in self._next(whole, missing).items():
                whole[slot].append(token)
                found[slot].append(token)
            missing = {s: len(own) - 1 for s, own in whole.items() if len(own) < room}
        return found

    def _next(
        self, whole: Mapping[int, list[int]], missing: Mapping[int, int]
    ) -> dict[int, int]:
        """The token behind each slot's whose tokens from a place on are missing.

        None of one whose numbers are none.
        """
        found, left = dict[int, int](), dict(missing)
        while left:
            chunks, steps = list[Chunk](), list[Step]()
            for slot, start in left.items():
                piece = whole[slot][start : start + self._engine.chunk]
                end = start + len(piece)
                if start and start == missing[slot] == len(whole[slot]) - 1:
                    steps.append(Step(slot, piece[0], start, _REQUEST, _GREEDY))
                else:
                    last = end == len(whole[slot])
                    rest = (_REQUEST, _GREEDY)
                    chunks.append(
                        Chunk(slot, tuple(piece), start, last, *rest, adopt=start > 0)
                    )
                left[slot] = end
            for sampled in self._engine.tick(Tick(tuple(chunks), tuple(steps))):
                if sampled.token >= 0:
                    found[sampled.slot] = sampled.token
            left = {s: at for s, at in left.items() if at < len(whole[s])}
        self._held |= {slot: list(whole[slot]) for slot in missing}
        return found

    def _missing(self, slot: int, tokens: Sequence[int]) -> int:
        """From where on the cache has other tokens than these, or none.

        Behind drafts that were all right there are two new tokens, else one. Two are
        computed at least, so that one call is for all slots.
        """
        held = self._held.get(slot, [])
        pairs = zip(held, tokens, strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), len(held))
        return min(common, max(len(tokens) - 2, 0))

    def describe(self) -> str:
        """See `Drafter.describe`."""
        return self._engine.model

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()


class Drafts:
    """A drafter's work for an engine: for which steps, and how often it is right."""

    def __init__(self, drafter: Drafter, most: int, context: int) -> None:
        self._drafter, self._most, self._context = drafter, most, context
        self.drafted = self.right = 0

    def of(self, steps: Sequence[Step], held: Mapping[int, Sequence[int]]) -> Drafted:
        """Tokens behind those of steps, where the slots hold these.

        None behind a step with a mask: which tokens its form allows is known of the
        next one alone.
        """
        tokens = {
            step.slot: [*held[step.slot][: step.position], step.token]
            for step in steps
            if step.mask is None and step.position + 1 < self._context
        }
        if not tokens:
            return {}
        drafted = self._drafter.draft(tokens, self._most)
        return {
            slot: after[: self._context - len(tokens[slot])]
            for slot, after in drafted.items()
            if after
        }

    def judge(self, drafted: Drafted, found: Mapping[int, Sequence[Sampled]]) -> None:
        """Count what was drafted, and how much of it is in the answers."""
        self.drafted += sum(map(len, drafted.values()))
        self.right += sum(len(found[slot]) - 1 for slot in drafted)

    def describe(self) -> dict[str, Any]:
        """Drafter, tokens drafted, tokens right."""
        said = {"drafter": self._drafter.describe(), "drafted": self.drafted}
        return said | {"right": self.right}

    def close(self) -> None:
        """Release the drafter."""
        self._drafter.close()
