"""The ring solver, against every order there is, and where that is too many."""

import itertools

import numpy as np
import pytest

from pcp.errors import UsageError
from pcp.runtime.topology.ring_order import best_order, exact, improved, normal, worth


def brute(cost: np.ndarray) -> tuple[float, float]:
    """The worth of the best of all tours."""
    rest = range(1, len(cost))
    return min(worth(cost, (0, *tour)) for tour in itertools.permutations(rest))


def drawn(size: int, seed: int, coarse: bool) -> np.ndarray:
    """Asymmetric costs; coarse ones have many ties, which the sum must break."""
    random = np.random.default_rng([size, seed])
    if coarse:
        return random.integers(1, 5, (size, size)).astype(float)
    return random.uniform(0.1, 10, (size, size))


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("size", range(1, 9))
def test_as_good_as_every_order_tried(size: int, coarse: bool) -> None:
    for seed in range(3 if size == 8 else 12):
        cost = drawn(size, seed, coarse)
        found = best_order(cost)
        assert sorted(found) == list(range(size))
        assert found[0] == 0
        # Sums of the same edges in another order may differ in the last bit.
        assert worth(cost, found) == pytest.approx(brute(cost), rel=1e-12)


def test_the_smaller_half_maximum_is_not_always_the_way() -> None:
    """Among tours of one bottleneck the least sum wins, which one pass misses."""
    for seed in range(60):
        cost = drawn(6, 100 + seed, coarse=True)
        assert worth(cost, exact(cost)) == brute(cost)


def test_edges_that_do_not_exist_are_avoided() -> None:
    cost = np.full((5, 5), np.inf)
    ring = (0, 3, 1, 4, 2)
    for a, b in itertools.pairwise((*ring, 0)):
        cost[a, b] = 1.0
    assert best_order(cost) == ring


@pytest.mark.parametrize("size", [12, 16, 24])
def test_local_search_finds_a_hidden_ring(size: int) -> None:
    random = np.random.default_rng(size)
    cost = random.uniform(5, 10, (size, size))
    ring = (0, *(random.permutation(size - 1) + 1).tolist())
    for a, b in itertools.pairwise((*ring, 0)):
        cost[a, b] = random.uniform(0.5, 1)
    found = best_order(cost)
    assert sorted(found) == list(range(size))
    assert worth(cost, found)[0] <= 5.5  # all but a few edges of the hidden ring
    assert worth(cost, found) < worth(cost, range(size))


def test_local_search_comes_close_to_the_best() -> None:
    close = 0
    for seed in range(10):
        cost = drawn(9, 200 + seed, coarse=False)
        start = tuple(range(9))
        found = worth(cost, improved(cost, start, rounds=40, seed=seed))
        best = worth(cost, exact(cost))
        assert best <= found <= worth(cost, start)
        close += found[0] <= 1.15 * best[0]
    assert close >= 8


def test_more_rounds_are_never_worse_and_the_seed_decides() -> None:
    cost = drawn(14, 5, coarse=False)
    few = best_order(cost, rounds=1)
    more = improved(cost, few, rounds=40, seed=3)
    assert worth(cost, more) <= worth(cost, few)
    assert more == improved(cost, few, rounds=40, seed=3)
    assert improved(cost, few, rounds=40, stop=lambda: True) == few


def test_a_ring_begins_at_rank_0() -> None:
    assert normal((2, 3, 0, 1)) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "cost", [np.ones((2, 3)), np.array([[0, np.nan], [1, 0]]), -np.ones((2, 2))]
)
def test_what_is_no_cost_is_refused(cost: np.ndarray) -> None:
    with pytest.raises(UsageError, match="costs of edges"):
        best_order(cost)
