"""From a tick to calls of functions, and what each slot holds: a state machine.

It computes nothing and knows no device. A chunk becomes the calls that waste the fewest
rows, steps become calls of as many rows as there are functions for. Rows that no step
is for are given to slots that rest: they write a token behind the last of such a slot,
where nobody looks before it is written again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pcp.errors import UsageError
from pcp.serving.cached_model import Call, Function, Shapes
from pcp.serving.interface import Chunk, Sampling, Step, Tick
from pcp.serving.sampling import History, check


@dataclass
class Slot:
    """The request that a slot's cache is of, and the tokens in it."""

    request: int = -1
    tokens: list[int] = field(default_factory=list)
    prompt: int = 0

    def history(self) -> History:
        """The tokens so far."""
        return History(self.tokens, self.prompt)


@dataclass(frozen=True)
class Wanted:
    """A row of a call's logits that a token is sampled from."""

    row: int
    slot: int
    sampling: Sampling
    mask: bytes | None


@dataclass(frozen=True)
class Planned:
    """A call, and what is sampled of it."""

    call: Call
    wanted: tuple[Wanted, ...]


class Slots:
    """All slots; `plan` brings them up to date with a tick."""

    def __init__(self, shapes: Shapes, count: int) -> None:
        if count < shapes.decode[0].rows:
            raise UsageError(
                f"{count} slots, and the smallest decode function is for "
                f"{shapes.decode[0].rows}"
            )
        self._shapes, self._count = shapes, count
        self.empty()

    def empty(self) -> None:
        """Forget what the slots hold."""
        self.slots = [Slot() for _ in range(self._count)]

    def plan(self, tick: Tick) -> list[Planned]:
        """The calls of a tick, in order; `UsageError` before anything is changed."""
        self._check(tick)
        found = [planned for chunk in tick.chunks for planned in self._chunk(chunk)]
        for step in tick.steps:
            slot = self.slots[step.slot]
            slot.tokens[step.position :] = [step.token]
        steps = list(tick.steps)
        while steps:
            steps = steps[self._decode(steps, found) :]
        return found

    # --- checks ---

    def _check(self, tick: Tick) -> None:
        used = [each.slot for each in (*tick.chunks, *tick.steps)]
        if twice := {slot for slot in used if used.count(slot) > 1}:
            raise UsageError(f"slot {min(twice)} is twice in the tick")
        for each in (*tick.chunks, *tick.steps):
            if not 0 <= each.slot < self._count:
                raise UsageError(f"no slot {each.slot}; there are {self._count}")
            check(each.sampling, self._shapes.vocabulary)
        for chunk in tick.chunks:
            self._check_chunk(chunk)
        for step in tick.steps:
            self._check_places(step, (step.token,), step.position)

    def _check_chunk(self, chunk: Chunk) -> None:
        most = max(f.rows for f in self._shapes.prefill)
        if not 0 < len(chunk.tokens) <= most:
            raise UsageError(
                f"a chunk of {len(chunk.tokens)} tokens; it has 1 to {most}"
            )
        self._check_places(chunk, chunk.tokens, chunk.start)

    def _check_places(
        self, of: Chunk | Step, tokens: Sequence[int], start: int
    ) -> None:
        slot, where = self.slots[of.slot], f"slot {of.slot}, request {of.request}"
        adopts = isinstance(of, Chunk) and of.adopt
        if start and slot.request != of.request and not adopts:
            raise UsageError(f"{where}: the slot is of request {slot.request}")
        if not 0 <= start <= len(slot.tokens) or (isinstance(of, Step) and not start):
            raise UsageError(
                f"{where}: position {start}, and the slot holds {len(slot.tokens)} "
                "tokens"
            )
        if start + len(tokens) > self._shapes.context:
            raise UsageError(
                f"{where}: position {start + len(tokens) - 1} of a context of "
                f"{self._shapes.context}"
            )
        for token in tokens:
            if not 0 <= token < self._shapes.vocabulary:
                raise UsageError(f"{where}: there is no token {token}")

    # --- calls ---

    def _chunk(self, chunk: Chunk) -> Iterator[Planned]:
        slot = self.slots[chunk.slot]
        slot.request = chunk.request
        slot.tokens[chunk.start :] = chunk.tokens
        slot.prompt = len(slot.tokens) if chunk.prompt is None else chunk.prompt
        start, end = chunk.start, len(slot.tokens)
        for rows in self._shapes.lengths(end - start):
            until = min(start + rows, end)
            yield self._piece(chunk, start, until, chunk.last and until == end)
            start = until

    def _piece(self, chunk: Chunk, start: int, end: int, last: bool) -> Planned:
        """The call for the tokens of a chunk from `start` to `end`."""
        function = self._shapes.fitting("prefill", end - start, end)
        # A call writes all its rows: at the end of the context it begins earlier.
        start = min(start, self._shapes.context - function.rows)
        tokens = self.slots[chunk.slot].tokens[start:end]
        filled = (*tokens, *[0] * (function.rows - len(tokens)))
        call = Call(function, (chunk.slot,), filled, (start, len(tokens)), last)
        wanted = Wanted(0, chunk.slot, chunk.sampling, chunk.mask)
        return Planned(call, (wanted,) if last else ())

    def _decode(self, steps: Sequence[Step], found: list[Planned]) -> int:
        """Plan the first of these steps; how many."""
        longest = 1 + max(step.position for step in steps)
        function = self._shapes.fitting("decode", len(steps), longest, self._count)
        taken = steps[: function.rows]
        rows = [(s.slot, s.token, s.position) for s in taken]
        rows += self._resting(function, {s.slot for s in taken})
        slots, tokens, places = zip(*rows, strict=True)
        wanted = tuple(
            Wanted(i, s.slot, s.sampling, s.mask) for i, s in enumerate(taken)
        )
        found.append(Planned(Call(function, slots, tokens, places), wanted))
        return len(taken)

    def _resting(
        self, function: Function, used: set[int]
    ) -> Iterator[tuple[int, int, int]]:
        """Slot, token and position of the rows that no step is for.

        Of a full slot that is its last token again, which changes nothing.
        """
        free = [slot for slot in range(self._count) if slot not in used]
        free.sort(key=lambda slot: len(self.slots[slot].tokens))
        for slot in free[: function.rows - len(used)]:
            tokens = self.slots[slot].tokens
            full = len(tokens) == self._shapes.context
            yield (
                (slot, tokens[-1], len(tokens) - 1) if full else (slot, 0, len(tokens))
            )
