"""From a tick to calls of functions, and what each slot holds: a state machine.

It computes nothing and knows no device. A chunk becomes the calls that waste the fewest
rows, and those of several slots become one where there is a function for it; steps
become calls of as many rows as there are functions for. Rows that no step is for are
given to slots that rest: they write a token behind the last of such a slot, where
nobody looks before it is written again.

Behind a step's token stand those that were drafted to follow it. A slot holds them
until `sampled` finds the first wrong one: rollback is a position.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pcp.decoder_phase import Phase
from pcp.errors import UsageError
from pcp.serving.cached_model import Call, Shapes
from pcp.serving.drawing import LogitsRow, draw_of
from pcp.serving.interface import Chunk, Sampling, Step, Tick
from pcp.serving.sampling import History, allowed, check


@dataclass
class Slot:
    """The request that a slot's cache is of, and the tokens in it."""

    request: int = -1
    tokens: list[int] = field(default_factory=list)
    prompt: int = 0

    def history(self, known: int) -> History:
        """Its first tokens."""
        return History(self.tokens[:known], self.prompt)


@dataclass(frozen=True)
class Wanted:
    """A row of a call's logits that the token behind `known` ones is sampled from."""

    row: int
    slot: int
    known: int
    sampling: Sampling
    mask: bytes | None

    def drawn(self, slot: Slot) -> LogitsRow:
        """As a program sees it, of the slot."""
        return LogitsRow(self.row, slot.history(self.known), self.sampling, self.mask)


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

    def plan(
        self, tick: Tick, drafted: Mapping[int, Sequence[int]] | None = None
    ) -> list[Planned]:
        """The calls of a tick that was checked, in order.

        `drafted` are tokens behind those of steps, by slot.
        """
        for chunk in tick.chunks:
            self._fill(chunk)
        found = list(self._together([p for c in tick.chunks for p in self._pieces(c)]))
        behind = drafted or {}
        steps = [(step, tuple(behind.get(step.slot, ()))) for step in tick.steps]
        for step, after in steps:
            self.slots[step.slot].tokens[step.position :] = (step.token, *after)
        while steps:
            steps = steps[self._decode(steps, found) :]
        return found

    def holds(self, wanted: Wanted) -> bool:
        """Whether the slot still has the tokens that a row's logits are behind."""
        return wanted.known <= len(self.slots[wanted.slot].tokens)

    def sampled(self, wanted: Wanted, token: int) -> None:
        """The token behind a row's; drafts from there on stay if it was drafted."""
        tokens = self.slots[wanted.slot].tokens
        if tokens[wanted.known : wanted.known + 1] != [token]:
            del tokens[wanted.known :]

    # --- checks ---

    def check(self, tick: Tick) -> None:
        """`UsageError` for a tick that contradicts what the slots hold."""
        used = [each.slot for each in (*tick.chunks, *tick.steps)]
        if twice := {slot for slot in used if used.count(slot) > 1}:
            raise UsageError(f"slot {min(twice)} is twice in the tick")
        for each in (*tick.chunks, *tick.steps):
            if not 0 <= each.slot < self._count:
                raise UsageError(f"no slot {each.slot}; there are {self._count}")
            check(each.sampling, self._shapes.vocabulary)
            if each.mask is not None:
                allowed(each.mask, self._shapes.vocabulary)
        for chunk in tick.chunks:
            self._check_chunk(chunk)
        for step in tick.steps:
            self._check_places(step, (step.token,), step.position)

    def _check_chunk(self, chunk: Chunk) -> None:
        most = self._shapes.chunk
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

    def _fill(self, chunk: Chunk) -> None:
        slot = self.slots[chunk.slot]
        slot.request = chunk.request
        slot.tokens[chunk.start :] = chunk.tokens
        slot.prompt = len(slot.tokens) if chunk.prompt is None else chunk.prompt

    def _pieces(self, chunk: Chunk) -> Iterator["_Piece"]:
        """A chunk as calls of its own."""
        start, end = chunk.start, len(self.slots[chunk.slot].tokens)
        for rows in self._shapes.lengths(end - start):
            until = min(start + rows, end)
            phase = self._shapes.of_chunk(until - start, until)
            # A call writes all its rows: at the end of the context it begins earlier.
            first = min(start, self._shapes.context - phase.rows)
            yield _Piece(chunk, phase, first, until, chunk.last and until == end)
            start = until

    def _together(self, pieces: list["_Piece"]) -> Iterator[Planned]:
        """Pieces of different slots, of one size, in one call where that is possible.

        Those of a slot stay in their order: a longer one is before a shorter one.
        """
        while pieces:
            rows = pieces[0].phase.rows
            alike, slots = list[_Piece](), set[int]()
            for piece in pieces:
                if piece.phase.rows == rows and piece.chunk.slot not in slots:
                    alike.append(piece)
                slots.add(piece.chunk.slot)
            context = max(piece.phase.context for piece in alike)
            phase = self._shapes.together(rows, context, len(alike))
            taken = alike[: phase.slots]
            pieces = [p for p in pieces if not any(p is t for t in taken)]
            yield self._prefill(phase, taken)

    def _prefill(self, phase: Phase, pieces: Sequence["_Piece"]) -> Planned:
        tokens = list[int]()
        for piece in pieces:
            own = self.slots[piece.chunk.slot].tokens[piece.start : piece.end]
            tokens += [*own, *[0] * (phase.rows - len(own))]
        call = Call(
            phase,
            tuple(piece.chunk.slot for piece in pieces),
            tuple(tokens),
            tuple(piece.start for piece in pieces),
            tuple(piece.end - piece.start for piece in pieces),
            any(piece.last for piece in pieces),
        )
        wanted = tuple(p.wanted(i) for i, p in enumerate(pieces) if p.last)
        return Planned(self._drawing(call, wanted), wanted)

    def _drawing(self, call: Call, wanted: Sequence[Wanted]) -> Call:
        """The call, and how the program draws what is wanted of it."""
        rows, shapes = call.phase.looked_at, self._shapes
        if rows not in shapes.sampled:
            return call
        rest = [each.drawn(self.slots[each.slot]) for each in wanted]
        return replace(call, draw=draw_of(rest, rows, shapes.parts))

    def _decode(
        self, steps: Sequence[tuple[Step, Sequence[int]]], found: list[Planned]
    ) -> int:
        """Plan the first of these steps; how many."""
        longest = 1 + max(step.position + len(after) for step, after in steps)
        most = 1 + max(len(after) for _, after in steps)
        phase = self._shapes.of_steps(len(steps), most, longest, self._count)
        taken = steps[: phase.slots]
        tokens, starts, wanted = list[int](), list[int](), list[Wanted]()
        for step, after in taken:
            start = min(step.position, self._shapes.context - phase.rows)
            own = self.slots[step.slot].tokens[start:]
            first = len(tokens) + step.position - start
            tokens += [*own, *[0] * (phase.rows - len(own))]
            starts.append(start)
            for i in range(1 + len(after)):
                known = step.position + 1 + i
                wanted.append(
                    Wanted(first + i, step.slot, known, step.sampling, step.mask)
                )
        slots = [step.slot for step, _ in taken]
        for slot, own, start in self._resting(phase, {*slots}):
            slots.append(slot)
            tokens += own
            starts.append(start)
        call = Call(phase, tuple(slots), tuple(tokens), tuple(starts))
        found.append(Planned(self._drawing(call, wanted), tuple(wanted)))
        return len(taken)

    def _resting(
        self, phase: Phase, used: set[int]
    ) -> Iterator[tuple[int, Sequence[int], int]]:
        """Slot, tokens and first position of the rows that no step is for.

        Of a full slot those are its last tokens again, which changes nothing.
        """
        free = [slot for slot in range(self._count) if slot not in used]
        free.sort(key=lambda slot: len(self.slots[slot].tokens))
        for slot in free[: phase.slots - len(used)]:
            held = self.slots[slot].tokens
            start = min(len(held), self._shapes.context - phase.rows)
            own = held[start:]
            yield slot, [*own, *[0] * (phase.rows - len(own))], start


@dataclass(frozen=True)
class _Piece:
    """Tokens `start` to `end` of a chunk's slot, and the call that is enough."""

    chunk: Chunk
    phase: Phase
    start: int
    end: int
    last: bool

    def wanted(self, row: int) -> Wanted:
        """The token behind it."""
        chunk = self.chunk
        return Wanted(row, chunk.slot, self.end, chunk.sampling, chunk.mask)
