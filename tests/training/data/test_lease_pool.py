"""Leases: nothing twice, nothing lost, whatever dies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp.errors import ConfigError, StateMismatch
from pcp.training.data.lease_pool import LeasePool, complement, merged, overlap, size

ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda p: (p[0], sum(p)))
)


def _set(pairs) -> set[int]:
    return {i for start, stop in pairs for i in range(start, stop)}


@given(ranges, ranges)
def test_range_arithmetic_is_set_arithmetic(left, right):
    assert _set(merged(left)) == _set(left)
    assert size(merged(left)) == len(_set(left))
    both = _set(left) & _set(right)
    found = overlap(sorted(left), sorted(right))
    assert (found is None) == (not both)
    assert found is None or _set([found]) <= both
    assert _set(complement(left, 50)) == set(range(50)) - _set(left)


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=60),
)
def test_every_position_is_consumed_exactly_once(quantum, plan):
    """Each plan entry asks for some steps and commits or returns them."""
    pool = LeasePool(100, quantum)
    consumed: list[int] = []
    for steps, lives in [*plan, *[(1, True)] * 100]:
        steps = pool.steps_for(1, steps)
        if not steps:
            break
        lease = pool.take(steps)
        assert size(lease) == steps * quantum
        assert all((b - a) % quantum == 0 for a, b in lease)
        if lives:
            consumed += sorted(_set(lease))
        else:
            pool.give_back(lease)
    assert sorted(consumed) == list(range(pool.total))


def test_returned_samples_go_first():
    pool = LeasePool(100, 10)
    first, second = pool.take(2), pool.take(2)
    pool.give_back(first)
    assert pool.take(3) == [(0, 20), (40, 50)]
    assert second == [(20, 40)]


def test_a_lease_cannot_be_returned_twice():
    pool = LeasePool(100, 10)
    lease = pool.take(2)
    pool.give_back(lease)
    with pytest.raises(StateMismatch, match="returned twice"):
        pool.give_back(lease)


def test_steps_shrink_at_the_end_and_reach_zero():
    pool = LeasePool(75, 10)
    assert pool.steps_for(2, 3) == 3
    pool.take(3)
    pool.take(3)
    assert (pool.available, pool.steps_for(2, 3), pool.steps_for(1, 3)) == (10, 0, 1)


def test_too_little_data_is_an_error():
    with pytest.raises(ConfigError, match="less than one inner step of 64"):
        LeasePool(63, 64)
