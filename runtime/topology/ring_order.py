"""The order of the members in a ring with edges of unequal cost.

A pipelined ring is as fast as its slowest edge, so the order that is sought is a
tour whose dearest edge is as cheap as can be, and of those the one whose edges
cost least together: the bottleneck version of the asymmetric travelling salesman
(Gilmore & Gomory, 1964). `cost[i, j]` is what it takes from i to j; the matrix
need not be symmetric, and an edge that cannot be used costs infinity.

Up to `EXACT` members the best order is found by dynamic programming over sets
(Bellman, 1962; Held & Karp, 1962): first the least bottleneck, then the least sum
below it. One pass for both would be wrong: of two half tours the one with the
smaller maximum need not lead to the better whole. Beyond, local search: segments
are moved, swapped and reversed as long as that helps, then the tour is shaken.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError

EXACT = 10
Order = tuple[int, ...]
Worth = tuple[float, float]


def worth(cost: NDArray, order: Sequence[int]) -> Worth:
    """(bottleneck, sum) of a tour; less is better."""
    steps = cost[list(order), [*order[1:], order[0]]]
    return float(steps.max()), float(steps.sum())


def normal(order: Sequence[int]) -> Order:
    """The same ring, written from rank 0 on."""
    at = list(order).index(0)
    return (*order[at:], *order[:at])


def best_order(cost: NDArray, *, rounds: int = 60, seed: int = 0) -> Order:
    """The best ring that is found: exact for small worlds, else by `improved`.

    Never worse than the order of ranks; the same for the same arguments.
    """
    size = _checked(cost)
    if size <= 3:
        tours = [(0, *rest) for rest in itertools.permutations(range(1, size))]
        return min(tours, key=lambda tour: (worth(cost, tour), tour))
    if size <= EXACT:
        return exact(cost)
    starts = [_descend(_finite(cost), t) for t in (tuple(range(size)), _greedy(cost))]
    start = min(starts, key=lambda tour: worth(cost, tour))
    return improved(cost, start, rounds=rounds, seed=seed)


def exact(cost: NDArray) -> Order:
    """The best ring of all."""
    size = _checked(cost)
    bottleneck = _least(cost, size, max)[0]
    allowed = np.where(cost <= bottleneck, cost, np.inf)
    return _least(allowed, size, lambda a, b: a + b)[1]


def improved(
    cost: NDArray,
    order: Order,
    *,
    rounds: int,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Order:
    """`order` or a better one, after so many shakes (Lin, Martin & Otto, 1991).

    A shake joins the tour's four parts anew (the double bridge), which no single
    move of the descent undoes.
    """
    random = np.random.default_rng(seed)
    size, cost = len(order), _finite(cost)
    best, value = order, worth(cost, order)
    for _ in range(rounds if size >= 8 else 0):
        if stop():
            break
        a, b, c = sorted(random.choice(np.arange(1, size), 3, replace=False).tolist())
        shaken = (*best[:a], *best[b:c], *best[a:b], *best[c:])
        tour = _descend(cost, shaken)
        if (found := worth(cost, tour)) < value:
            best, value = tour, found
    return normal(best)


def _checked(cost: NDArray) -> int:
    shape = cost.shape
    if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
        raise UsageError(f"costs of edges are a square matrix, not {list(shape)}")
    apart = cost[~np.eye(shape[0], dtype=bool)]
    if np.isnan(apart).any() or (apart < 0).any():
        raise UsageError("costs of edges are numbers from 0 on")
    return shape[0]


def _least(
    cost: NDArray, size: int, join: Callable[[float, float], float]
) -> tuple[float, Order]:
    """The least total of a tour from rank 0, where `join` adds an edge to a total.

    `table[members, last]` is (least total, the one before last) of the paths that
    begin at 0, visit `members` (a bit for each of 1, 2, ...) and end at `last`.
    """
    edge = cost.tolist()
    others = range(1, size)
    table: dict[tuple[int, int], tuple[float, int]] = {
        (1 << i - 1, i): (edge[0][i], 0) for i in others
    }
    for count in range(2, size):
        for subset in itertools.combinations(others, count):
            members = sum(1 << i - 1 for i in subset)
            for last in subset:
                rest = members & ~(1 << last - 1)
                table[members, last] = min(
                    (join(table[rest, i][0], edge[i][last]), i)
                    for i in subset
                    if i != last
                )
    members = (1 << size - 1) - 1
    total, last = min((join(table[members, i][0], edge[i][0]), i) for i in others)
    path = []
    while last:
        path.append(last)
        members, last = members & ~(1 << last - 1), table[members, last][1]
    return total, (0, *reversed(path))


def _greedy(cost: NDArray) -> Order:
    """A tour that always goes on to the nearest member left."""
    tour, left = [0], set(range(1, len(cost)))
    while left:
        nearest = min(left, key=lambda i: (cost[tour[-1], i], i))
        tour.append(nearest)
        left.remove(nearest)
    return tuple(tour)


def _descend(cost: NDArray, order: Order) -> Order:
    """Steepest descent: to the best tour one move away, until none is better."""
    tour, value = np.array(order), worth(cost, order)
    while True:
        near = tour[_moves(len(order))]
        steps = cost[near, np.roll(near, -1, axis=1)]
        highest = steps.max(axis=1)
        sums = np.where(highest == highest.min(), steps.sum(axis=1), np.inf)
        found = near[int(sums.argmin())]
        if (better := worth(cost, found.tolist())) >= value:
            return tuple(tour.tolist())
        tour, value = found, better


@lru_cache(maxsize=4)
def _moves(size: int) -> NDArray:
    """Every tour one move away, as places in the old one: a row each.

    A segment of up to three goes elsewhere, turned around or not; two members
    change places; a stretch is turned around.
    """
    tour = tuple(range(size))
    found = set()
    for first, length in itertools.product(range(size), (1, 2, 3)):
        turned = tour[first:] + tour[:first]
        segment, rest = turned[:length], turned[length:]
        for place in range(1, len(rest)):
            found.add(normal(rest[:place] + segment + rest[place:]))
            found.add(normal(rest[:place] + segment[::-1] + rest[place:]))
    for first, second in itertools.combinations(range(size), 2):
        swapped = list(tour)
        swapped[first], swapped[second] = tour[second], tour[first]
        found.add(normal(swapped))
        stretch = tour[first : second + 1][::-1]
        found.add(normal(tour[:first] + stretch + tour[second + 1 :]))
    return np.array(sorted(found - {tour}))


def _finite(cost: NDArray) -> NDArray:
    """Finite costs, so that even tours over missing edges compare."""
    known = cost[np.isfinite(cost)]
    return np.where(np.isfinite(cost), cost, 1e3 * (1 + known.max(initial=0.0)))
