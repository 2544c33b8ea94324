"""Ways to peers that are slow: the rate, the delay, and nothing else changes."""

import time

import numpy as np
import pytest
from helpers.worlds.communicators import CARRIERS, together, world

from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.transport.fault_injection import Fault, FaultPlan, Shape


def seconds(comm: Communicator, what) -> float:
    comm.barrier()
    begin = time.monotonic()
    what(comm)
    return time.monotonic() - begin


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_rate_limits_and_bytes_stay_right(carrier: str) -> None:
    plan = FaultPlan(shapes=[Shape(peer=1, bytes_per_second=2e6)])
    parts = [np.full(100_000, rank + 1, np.float32) for rank in range(3)]
    with world(carrier, 3, {0: plan}) as members:
        took = together(
            members, lambda c: seconds(c, lambda c: c.all_reduce(parts[c.rank]))
        )
    # Of 400 kB two thirds go over each edge twice: 533 kB at 2 MB/s.
    assert max(took) > 0.25
    assert all((part == 6).all() for part in parts)


def test_delayed_messages_travel_side_by_side_in_order() -> None:
    plan = FaultPlan(shapes=[Shape(delay=0.5)])
    with world("tcp", 2, {0: plan}) as members:

        def work(comm: Communicator) -> list[int]:
            if comm.rank == 0:
                for index in range(20):
                    comm.send_async(np.array([index]), 1)
                comm.barrier()
                return []
            got = [int(comm.recv(np.zeros(1, int), 0)[0]) for _ in range(20)]
            comm.barrier()
            return got

        begin = time.monotonic()
        _, got = together(members, work)
        took = time.monotonic() - begin
    assert got == list(range(20))
    # As on a long line: of all of them together, not 10 s, one after another.
    assert 0.5 <= took < 5


def test_a_fault_has_precedence_over_a_shape() -> None:
    fault = Fault("delay", seconds=0.01)
    plan = FaultPlan([fault], [Shape(peer=1, bytes_per_second=1e9)])
    with world("tcp", 2, {0: plan}) as members:
        done = together(members, lambda c: c.all_reduce(np.ones(50_000)))
        assert all((d == 2).all() for d in done)
    assert plan.fired == 1
