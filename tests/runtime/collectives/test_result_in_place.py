"""Results that the compiled loop makes in place, and others that need the memory."""

import numpy as np
import pytest
from helpers.worlds.collective_arguments import draw
from helpers.worlds.communicators import (
    endpoints,
    eventually,
    form,
    leave,
    outcome,
    together,
)
from helpers.worlds.communicators import world as world_of

from pcp.errors import PcpError
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.transport import mover
from pcp.runtime.transport.fault_injection import Fault, FaultPlan
from pcp.runtime.transport.frame import Kind

pytestmark = pytest.mark.skipif(mover.compiled is None, reason="no compiled loops")
SIZE = 300_001


@pytest.fixture
def world():
    with endpoints(3, shared_memory=False) as made:
        members = form(made)
        yield members
        leave(members)


def test_a_decision_for_an_operation_brings_the_result_in_place():
    """Though the peer's vote never comes, and the loop still has the moves."""
    unsaid = FaultPlan([Fault("drop", kind=Kind.DONE)])
    with world_of("tcp", 2, {1: unsaid}) as members:
        group, arrays = members[0]._group, [draw(rank, SIZE) for rank in range(2)]
        wanted, driven = reference(arrays).tobytes(), []

        def decide(key):
            driven.append(group.loop.driver)
            group.loop.call(group.decided, key, True)

        group.arbiter = decide
        limits = [0.5, 20]
        ends = together(
            members,
            lambda m: m.all_reduce(arrays[m.rank], timeout=limits[m.rank]).tobytes(),
        )
        assert ends == [wanted] * 2
        assert unsaid.fired == 1
        assert len(driven) == 1
        assert driven[0] is not None


@pytest.mark.parametrize("second", ["all_reduce", "all_reduced"])
def test_two_sums_of_the_same_memory_at_once_are_refused(world, second):
    """They would read each other's sums."""
    arrays = [draw(rank, SIZE) for rank in range(3)]
    kept = [one.copy() for one in arrays]

    def calls(m):
        first = m.all_reduce_async(arrays[m.rank][: SIZE // 2 + 1], tag="a")
        start = getattr(m, f"{second}_async")
        return outcome(start(arrays[m.rank][SIZE // 2 :], tag="b").result), first

    ends = together(world, calls)
    wanted = reference([one[: SIZE // 2 + 1] for one in kept])
    for (error, first), ours, old in zip(ends, arrays, kept, strict=True):
        assert isinstance(error, PcpError)
        assert first.result(20).tobytes() == wanted.tobytes()
        assert np.array_equal(ours[SIZE // 2 + 1 :], old[SIZE // 2 + 1 :])
    assert "wait for that call first" in str([error for error, _ in ends])


def test_a_call_that_reads_what_a_sum_overwrites_has_the_values_of_before(world):
    arrays = [draw(rank, SIZE) for rank in range(3)]
    kept = [one.copy() for one in arrays]

    def calls(m):
        mine, sums = arrays[m.rank], []
        if m.rank < 2:
            sums.append(m.all_reduce_async(mine, tag="a", timeout=20))
        if m.rank == 1:  # the part of rank 0 has been added there
            eventually(lambda: not np.array_equal(mine, kept[1]))
        found = m.all_gather_async(mine, tag="b").result(20)
        return found, (sums or [m.all_reduce_async(mine, tag="a")])[0].result(20)

    wanted = reference(kept).tobytes()
    for gathered, summed in together(world, calls):
        assert np.asarray(gathered).tobytes() == np.stack(kept).tobytes()
        assert summed.tobytes() == wanted
