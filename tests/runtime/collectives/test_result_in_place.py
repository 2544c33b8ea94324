"""Results that the compiled loop makes in place, and others that need the memory."""

import threading

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


@pytest.mark.parametrize("how", ["close", "decide"])
def test_sums_that_are_done_at_once_are_made_when_the_first_caller_is_told(how):
    """Though that caller ends the group, or the coordinator decides about the other."""
    arrays = [[draw(2 * rank + i, SIZE) for i in range(2)] for rank in range(2)]
    wanted = [reference([mine[i] for mine in arrays]).tobytes() for i in range(2)]
    with world_of("tcp", 2) as members:
        group, over, ended = members[0]._group, set[int](), []
        compiled = group.loop.ask(lambda: group.compiled_loop({1}))
        tell, listening, both = compiled._tell, threading.Event(), threading.Event()

        def tell_of_both(number):
            if number == min(compiled._jobs) and listening.is_set() and len(over) == 2:
                both.set()
            over.update([number] if tell(number) else ())
            return both.is_set()

        def end_the_other(_):
            (other,) = group.under_way
            group.close() if how == "close" else other.decided(True)
            ended.append(other)

        def calls(m):
            first, second = (
                m.all_reduce_async(one, tag=str(i), timeout=20)
                for i, one in enumerate(arrays[m.rank])
            )
            if m.rank == 0:
                first.add_done_callback(end_the_other)
                listening.set()
            return [outcome(f.result) for f in (first, second)]

        compiled._tell = tell_of_both
        for found, mine in zip(together(members, calls), arrays, strict=True):
            assert [one.tobytes() for one in found] == wanted
            assert [one.tobytes() for one in mine] == wanted
        assert len(ended) == 1
