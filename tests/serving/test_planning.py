"""The calls of a tick: which functions, and which tokens each computes."""

from collections.abc import Sequence

import numpy as np
import pytest

from pcp.decoder_phase import Phase
from pcp.serving.cached_model import Shapes
from pcp.serving.interface import Chunk, Sampling, Step, Tick
from pcp.serving.planning import Planned, Slots

CONTEXT = 200
ONE = (Phase("decode", 1, 1, CONTEXT),)


def shapes(*rows: int, decode: Sequence[Phase] = ONE) -> Shapes:
    """Prefill functions of so many rows."""
    prefill = tuple(Phase("prefill", 1, n, CONTEXT) for n in rows)
    return Shapes(prefill, tuple(decode), CONTEXT, 1000)


@pytest.mark.parametrize(
    ("count", "lengths"),
    [
        (1, [32]),
        (32, [32]),
        (33, [32, 32]),
        (64, [32, 32]),
        (96, [128]),
        (128, [128]),
        (129, [128, 32]),
        (256, [128, 128]),
    ],
)
def test_few_rows_are_without_a_token(count: int, lengths: list[int]) -> None:
    assert shapes(32, 128).lengths(count) == lengths


def test_one_length_is_taken_as_often_as_it_must_be() -> None:
    assert shapes(16).lengths(40) == [16, 16, 16]


def write(caches: dict[int, list[int]], planned: Sequence[Planned]) -> None:
    """Do to caches what the calls say; a slot is at most once in a call."""
    for each in planned:
        call, rows = each.call, each.call.phase.rows
        assert len(call.slots) == len({*call.slots}) == call.phase.slots
        assert len(call.tokens) == call.phase.slots * rows
        for i, (slot, at) in enumerate(zip(call.slots, call.starts, strict=True)):
            assert 0 <= at <= CONTEXT - rows
            own = call.tokens[i * rows : (i + 1) * rows]
            caches[slot][at : at + rows] = own
            if call.counts:
                assert not any(own[call.counts[i] :])


def held(caches: dict[int, list[int]], planned: Sequence[Planned]) -> None:
    """Each wanted row stands behind the tokens that its slot's cache has by then."""
    for each in planned:
        call, rows = each.call, each.call.phase.rows
        for wanted in each.wanted:
            at = wanted.row if call.counts else wanted.row // rows
            assert call.slots[at] == wanted.slot
            inside = call.counts[at] - 1 if call.counts else wanted.row % rows
            assert call.starts[at] + inside + 1 == wanted.known


@pytest.mark.parametrize("start", [0, 5, 90, 135])
@pytest.mark.parametrize("count", [1, 31, 33, 64, 65, 110])
@pytest.mark.parametrize("last", [False, True])
def test_the_calls_of_a_chunk_write_its_tokens_once_each_and_in_order(
    start: int, count: int, last: bool
) -> None:
    """A cache in which each call writes what it says holds the prompt."""
    end = min(start + count, CONTEXT)
    prompt = list(range(1, 1 + end))
    slots = Slots(shapes(32, 128), 1)
    slots.slots[0].tokens = prompt[:start]
    caches = {0: prompt[:start] + [0] * (CONTEXT - start)}
    chunk = Chunk(0, (*prompt[start:],), start, last, 1, Sampling(), adopt=start > 0)
    planned = slots.plan(Tick((chunk,)))
    write(caches, planned)
    held(caches, planned)
    assert caches[0][:end] == prompt
    before = [False] * (len(planned) - 1)
    assert [bool(each.wanted) for each in planned] == [*before, last]
    assert [each.call.wanted for each in planned] == [*before, last]


MANY = (
    *(Phase("prefill", n, 32, CONTEXT) for n in (1, 2, 4)),
    Phase("prefill", 1, 128, CONTEXT),
)
DRAFTED = tuple(Phase("decode", n, c, CONTEXT) for c in (1, 4) for n in (1, 2, 4))


def test_chunks_of_one_size_are_one_call() -> None:
    slots = Slots(Shapes(MANY, DRAFTED, CONTEXT, 1000), 8)
    chunks = tuple(Chunk(i, (1, 2 + i), 0, True, i, Sampling()) for i in range(7))
    planned = slots.plan(Tick(chunks))
    assert [each.call.phase.slots for each in planned] == [4, 2, 1]
    assert [w.slot for each in planned for w in each.wanted] == list(range(7))


@pytest.mark.parametrize("seed", range(40))
def test_drawn_ticks_write_each_slots_tokens(seed: int) -> None:
    """Chunks, steps and drafts of several slots; right drafts stay, wrong ones go."""
    random = np.random.default_rng(seed)
    count = int(random.integers(4, 9))
    slots = Slots(Shapes(MANY, DRAFTED, CONTEXT, 1000), count)
    caches = {slot: [0] * CONTEXT for slot in range(count)}
    truth: dict[int, list[int]] = {slot: [] for slot in range(count)}
    for _ in range(12):
        chunks, steps, drafted = list[Chunk](), list[Step](), dict[int, list[int]]()
        for slot in random.permutation(count)[: random.integers(1, count + 1)].tolist():
            own, room = truth[slot], CONTEXT - len(truth[slot])
            if not room or random.random() < 0.1:
                own, room = [], CONTEXT
            new = random.integers(1, 1000, min(room, int(random.integers(1, 128))))
            if own and random.random() < 0.6:
                steps.append(Step(slot, int(new[0]), len(own), 0, Sampling()))
                most = min(room - 1, int(random.integers(0, 4)))
                drafted[slot] = random.integers(1, 1000, most).tolist()
                new = new[:1]
            else:
                tokens = tuple(new.tolist())
                given = (len(own), random.random() < 0.5, 0, Sampling())
                chunks.append(Chunk(slot, tokens, *given, adopt=bool(own)))
            truth[slot] = [*own, *new.tolist()]
        tick = Tick(tuple(chunks), tuple(steps))
        slots.check(tick)
        planned = slots.plan(tick, drafted)
        write(caches, planned)
        held(caches, planned)
        asked = [w.slot for each in planned for w in each.wanted]
        drafts = [slot for slot, after in drafted.items() for _ in after]
        ends = [chunk.slot for chunk in chunks if chunk.last]
        assert sorted(asked) == sorted([*ends, *(s.slot for s in steps), *drafts])
        for wanted in (w for each in planned for w in each.wanted):
            if not slots.holds(wanted):
                continue
            after = drafted.get(wanted.slot, [])
            nth = wanted.known - len(truth[wanted.slot])
            right = nth < len(after) and random.random() < 0.6
            slots.sampled(wanted, after[nth] if right else 0)
        for slot, own in truth.items():
            mine = slots.slots[slot].tokens
            assert mine[: len(own)] == own
            truth[slot] = list(mine)
            assert caches[slot][: len(mine)] == mine
