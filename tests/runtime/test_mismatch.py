"""Members that do not make the same call: an error on all, at once, that says who.

Every case is run with each rank as the odd one out; afterwards inputs are what
they were and the group goes on.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.worlds.communicators import outcome, together, world
from numpy.typing import DTypeLike

from pcp.errors import CollectiveAborted, PcpError
from pcp.runtime.communicator.communicator import Communicator

LARGE = 50_000
Call = Callable[[Communicator, np.ndarray], Any]


def ones(count: int, dtype: DTypeLike = np.float32) -> np.ndarray:
    return np.ones(count, dtype)


def summed(op: str = "sum", **more: Any) -> Call:
    return lambda c, a: c.all_reduce(a, op, **more)


def scattered(op: str = "sum", **more: Any) -> Call:
    return lambda c, a: c.reduce_scatter(a, op, **more)


def gathered(c: Communicator, a: np.ndarray) -> Any:
    return c.all_gather(a)


def swapped(c: Communicator, a: np.ndarray) -> Any:
    return c.all_to_all(a)


def spread(root: int) -> Call:
    return lambda c, a: c.broadcast(a, root)


def moved(*pairs: tuple[int, int]) -> Call:
    return lambda c, a: c.permute(a, list(pairs))


# name: (what most do, with what; what one does, with what; the words for it)
CASES: dict[str, tuple[Call, np.ndarray, Call, np.ndarray, str]] = {
    "count, small": (summed(), ones(4), summed(), ones(5), "shape"),
    "count, large": (summed(), ones(LARGE), summed(), ones(LARGE + 1), "shape"),
    "small with large": (summed(), ones(LARGE), summed(), ones(4), "shape"),
    "large with small": (summed(), ones(4), summed(), ones(LARGE), "shape"),
    "nothing": (summed(), ones(LARGE), summed(), ones(0), "shape"),
    "shape, same count": (
        summed(),
        np.ones((4, 6)),
        summed(),
        np.ones((6, 4)),
        "shape",
    ),
    "dtype, same bytes": (summed(), ones(6), summed(), ones(6, np.int32), "dtype"),
    "dtype, large": (summed(), ones(LARGE), summed(), ones(LARGE, np.int32), "dtype"),
    "op": (summed(), ones(6), summed("max"), ones(6), "op sum.*op max|op max.*op sum"),
    "op, large": (summed(), ones(LARGE), summed("mean"), ones(LARGE), "op"),
    "compression": (
        summed(),
        ones(LARGE),
        summed(compression="int8"),
        ones(LARGE),
        "compression",
    ),
    "another compression": (
        summed(compression="int8"),
        ones(LARGE),
        summed(compression="bf16"),
        ones(LARGE),
        "compression",
    ),
    "count, compressed": (
        summed(compression="int8"),
        ones(LARGE),
        summed(compression="int8"),
        ones(LARGE - 1),
        "shape",
    ),
    "algorithm": (
        summed(algorithm="tree"),
        ones(LARGE),
        summed(algorithm="ring"),
        ones(LARGE),
        "algorithm",
    ),
    "scatter's op": (scattered(), ones(60), scattered("max"), ones(60), "op"),
    "scatter's sizes": (
        scattered(sizes=[20, 20, 20]),
        ones(60),
        scattered(sizes=[30, 20, 10]),
        ones(60),
        "rows",
    ),
    "gather's dtype": (gathered, ones(6), gathered, ones(6, np.int32), "dtype"),
    "gather's rows": (
        gathered,
        np.ones((6, 4)),
        gathered,
        np.ones((6, 5)),
        "shape|rows",
    ),
    "transpose": (swapped, np.ones((3, 4)), swapped, np.ones((3, 5)), "shape"),
    "root": (spread(0), ones(LARGE), spread(1), ones(LARGE), "root"),
    "root, small": (spread(0), ones(5), spread(1), ones(5), "root"),
    "pairs": (moved((0, 1)), ones(5), moved((1, 0)), ones(5), "pairs"),
    "another call": (summed(), ones(6), gathered, ones(6), "kind all_gather"),
    "another large call": (summed(), ones(LARGE), spread(0), ones(LARGE), "kind"),
    "no array": (summed(), ones(6), lambda c, a: c.barrier(), ones(6), "kind barrier"),
}


@pytest.fixture(scope="module", params=["in_process", "memory"])
def three(request):
    with world(request.param, 3) as members:
        for member in members:
            member.timeout = 30.0
        yield members


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("name", CASES)
def test_all_hear_of_it_and_who_it_was(three, name, odd) -> None:
    most, given, other, odd_given, words = CASES[name]
    arrays = [(odd_given if c.rank == odd else given).copy() for c in three]
    faults = together(
        three,
        lambda c: outcome(
            lambda: (other if c.rank == odd else most)(c, arrays[c.rank])
        ),
    )
    for rank, fault in enumerate(faults):
        assert isinstance(fault, CollectiveAborted), (rank, fault)
        assert "disagree" in str(fault)
        assert f"rank {odd} has" in str(fault), (rank, fault)
        assert re.search(words, str(fault)), (rank, fault)
    for rank, array in enumerate(arrays):
        assert (array == (odd_given if rank == odd else given)).all()
    sums = together(three, lambda c: c.all_reduce(ones(LARGE)))
    assert all((s == 3).all() for s in sums)


def test_nobody_waits_for_a_disagreement_about_another_tag(three) -> None:
    """Two operations under way: one is a disagreement, the other is not."""

    def both(c: Communicator) -> tuple[Any, Any]:
        bad = c.all_reduce_async(ones(5 if c.rank else 4), tag="bad")
        good = c.all_reduce_async(ones(LARGE), tag="good")
        return outcome(bad.result), outcome(good.result)

    for bad, good in together(three, both):
        assert isinstance(bad, CollectiveAborted)
        assert isinstance(good, np.ndarray)
        assert (good == 3).all()


@pytest.mark.parametrize("sent", [3, LARGE])
def test_a_message_of_another_size_is_an_error_at_both_ends(sent) -> None:
    with world("in_process", 2) as (a, b):
        faults = together(
            [
                lambda: a.send(ones(sent), 1, timeout=5),
                lambda: b.recv(ones(sent + 1), 0, timeout=5),
            ],
            outcome,
        )
        assert isinstance(faults[1], PcpError)
        assert re.search("shape|size|bytes", str(faults[1]))
        if sent == LARGE:  # a small one is gone before anybody looks at it
            assert isinstance(faults[0], PcpError)
