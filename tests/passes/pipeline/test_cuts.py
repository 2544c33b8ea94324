"""Cuts of a chain into stages against trying them all."""

from itertools import combinations, pairwise
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from pcp.passes.pipeline.cuts import Chain, best_cuts


def _slowest(chain: Chain, cuts: tuple[int, ...]) -> float:
    """The slowest stage's time; infinity where a cut is forbidden or too much."""
    bounds = [0, *cuts, len(chain.cost)]
    worst = 0.0
    for stage, (a, b) in enumerate(pairwise(bounds)):
        fits = sum(chain.kept[a:b]) <= chain.room[stage]
        here = all(stage in stages for stages in chain.bound[a:b])
        if not fits or not here or (a and not chain.allowed[a]):
            return inf
        worst = max(worst, sum(chain.cost[a:b]) / chain.speeds[stage])
    return worst


@st.composite
def chains(draw) -> Chain:
    n, stages = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    small = st.integers(0, 9)
    bound = st.frozensets(st.integers(0, stages - 1), min_size=stages // 2)
    return Chain(
        cost=draw(st.lists(small, min_size=n, max_size=n)),
        kept=draw(st.lists(small, min_size=n, max_size=n)),
        crossing=draw(st.lists(small, min_size=n, max_size=n)),
        allowed=draw(st.lists(st.booleans(), min_size=n, max_size=n)),
        speeds=draw(
            st.lists(st.sampled_from([1.0, 2.0]), min_size=stages, max_size=stages)
        ),
        room=draw(
            st.lists(st.sampled_from([12.0, inf]), min_size=stages, max_size=stages)
        ),
        bound=draw(st.one_of(st.just([]), st.lists(bound, min_size=n, max_size=n))),
    )


@given(chains())
@settings(max_examples=200, derandomize=True)
def test_no_other_cut_is_better(chain: Chain) -> None:
    stages = len(chain.speeds)
    ways = list(combinations(range(1, len(chain.cost)), stages - 1))
    times = {cuts: _slowest(chain, cuts) for cuts in ways}
    best = min(times.values(), default=inf)
    found = best_cuts(chain, slack=0.0)
    if best == inf:
        assert found is None
        return
    assert found is not None
    assert times[tuple(found)] == best
    fewest = min(sum(chain.crossing[c] for c in w) for w in ways if times[w] == best)
    assert sum(chain.crossing[c] for c in found) == fewest
