"""The calls of a tick: which functions, and which tokens each computes."""

import pytest

from pcp.serving.cached_model import Function, Shapes
from pcp.serving.interface import Chunk, Sampling, Tick
from pcp.serving.planning import Slots

CONTEXT = 200


def shapes(*rows: int) -> Shapes:
    """Prefill functions of so many rows."""
    prefill = tuple(Function("prefill", n, CONTEXT) for n in rows)
    return Shapes(prefill, (Function("decode", 1, CONTEXT),), CONTEXT, 1000)


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
    cache = prompt[:start] + [0] * (CONTEXT - start)
    chunk = Chunk(0, (*prompt[start:],), start, last, 1, Sampling(), adopt=start > 0)
    planned = slots.plan(Tick((chunk,)))
    for each in planned:
        at, valid = each.call.places
        tokens = each.call.tokens
        assert len(tokens) == each.call.function.rows <= CONTEXT - at
        assert not any(tokens[valid:])
        cache[at : at + len(tokens)] = tokens
    assert cache[:end] == prompt
    before = [False] * (len(planned) - 1)
    assert [bool(each.wanted) for each in planned] == [*before, last]
    assert [each.call.wanted for each in planned] == [*before, last]
