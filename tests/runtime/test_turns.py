"""Calls of different kinds on one tag, and members that leave when done."""

import numpy as np
import pytest
from helpers.worlds.communicators import together, world


@pytest.mark.parametrize("carrier", ["tcp", "in_process"])
@pytest.mark.parametrize("size", [2, 100_000])
def test_broadcasts_keep_their_place_among_other_calls(carrier, size):
    with world(carrier, 3) as members:

        def calls(comm):
            pending = comm.all_reduce_async(np.ones(size, np.float32))
            got = comm.broadcast(np.full(size, float(comm.rank)), root=2)
            return got[0], pending.result(30)[0], comm.all_reduce(np.ones(1))[0]

        assert together(members, calls) == [(2, 3, 3)] * 3


@pytest.mark.parametrize("carrier", ["tcp", "in_process"])
def test_members_may_leave_right_after_a_barrier(carrier):
    for _ in range(20):
        with world(carrier, 4) as members:

            def leave(comm):
                comm.barrier()
                comm.close()

            together(members, leave)
