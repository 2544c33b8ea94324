"""Groups of some members."""

import numpy as np
import pytest
from helpers.worlds.communicators import together, world

from pcp.errors import UsageError


@pytest.mark.parametrize("carrier", ["in_process", "tcp"])
def test_a_world_falls_into_groups_with_their_own_order(carrier):
    parts = {0: [2, 0], 2: [2, 0], 1: [1], 3: None}
    with world(carrier, 4) as members:

        def work(comm):
            ranks = parts[comm.rank] or [1]
            group = comm.group(ranks)
            if group is None:
                return None
            with group:
                total = group.all_reduce(np.array([10.0**comm.rank]))
                return group.rank, group.world_size, float(total[0])

        found = together(members, work)
        assert found == [(1, 2, 101.0), (0, 1, 10.0), (0, 2, 101.0), None]
        together(members, lambda c: c.barrier())


@pytest.mark.parametrize("ranks", [[], [0, 0], [0, 2]])
def test_ranks_that_make_no_group_are_refused(ranks):
    with world("in_process", 2) as members, pytest.raises(UsageError, match="ranks"):
        members[0].group(ranks)
