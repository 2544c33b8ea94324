"""exchange: parts of any size to everybody."""

import ml_dtypes
import numpy as np
import pytest
from helpers.worlds.communicators import outcome, together, world

from pcp.errors import CollectiveAborted, UsageError


@pytest.mark.parametrize("carrier", ["in_process", "tcp", "memory"])
@pytest.mark.parametrize("rows", [0, 1, 9_000])
@pytest.mark.parametrize("dtype", ["int32", ml_dtypes.bfloat16])
def test_parts_of_any_size_arrive(carrier, rows, dtype):
    def part(source: int, target: int) -> np.ndarray:
        return np.full((rows * source + target, 3), 10 * source + target, dtype)

    with world(carrier, 3) as members:
        found = together(
            members, lambda c: c.exchange([part(c.rank, to) for to in range(3)])
        )
    for rank, parts in enumerate(found):
        for source, values in enumerate(parts):
            np.testing.assert_array_equal(values, part(source, rank))


def test_wrong_use_is_refused_and_disagreement_noticed():
    with world("in_process", 2) as members:
        for parts in (
            [np.zeros(2)],
            [np.zeros(2), np.zeros(2, int)],
            [np.zeros(())] * 2,
        ):
            with pytest.raises(UsageError, match="one array for each"):
                members[0].exchange(parts)
        errors = together(
            members,
            lambda c: outcome(lambda: c.exchange([np.zeros((1, c.rank + 1))] * 2)),
        )
        assert all(isinstance(error, CollectiveAborted) for error in errors)
