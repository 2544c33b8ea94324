"""Parts of a dimension: consecutive, complete, as the weights say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcp.mesh import Mesh

GRID = Mesh("m", {"a": 2, "b": 3})


def test_members_in_order_the_last_axis_fastest() -> None:
    assert GRID.size == 6
    assert [tuple(m.values()) for m in GRID.members[:4]] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
    ]


@pytest.mark.parametrize(
    ("n", "weights", "sizes"),
    [
        (6, None, [2, 2, 2]),
        (8, None, [3, 3, 2]),  # the first ones are larger
        (2, None, [1, 1, 0]),
        (0, None, [0, 0, 0]),
        (8, (5, 2, 1), [5, 2, 1]),
        (128, (5, 2, 1), [80, 32, 16]),
        (10, (5, 2, 1), [6, 3, 1]),  # 6.25, 2.5, 1.25: half goes up
        (4, (1, 0, 1), [2, 0, 2]),
    ],
)
def test_shares(n: int, weights, sizes: list[int]) -> None:
    mesh = Mesh("m", {"a": 3}, (), {"a": weights} if weights else {})
    assert mesh.shares("a", n) == sizes


@given(st.integers(0, 40), st.permutations(["a", "b"]), st.integers(0, 2))
@settings(max_examples=80, derandomize=True)
def test_parts_are_consecutive_and_complete(
    n: int, axes: list[str], count: int
) -> None:
    axes = axes[:count]
    spans = sorted({GRID.part(n, axes, place) for place in GRID.members})
    assert sum(size for _, size in spans if size) == n
    end = 0
    for start, size in spans:
        if size:
            assert start == end
            end += size
    assert sum(GRID.parts(n, axes)) == n


def test_parts_of_inner_axes_lie_in_those_of_outer_ones() -> None:
    for place in GRID.members:
        outer, size = GRID.part(11, ["a"], place)
        inner, own = GRID.part(11, ["a", "b"], place)
        assert outer <= inner
        assert inner + own <= outer + size


def test_what_every_part_has_some_of() -> None:
    even, uneven = Mesh("m", {"a": 2, "b": 2}), Mesh("m", {"a": 2}, (), {"a": (7, 1)})
    for n in range(12):
        assert even.fills(n, ("a", "b")) == (min(even.parts(n, ("a", "b"))) > 0)
        assert uneven.fills(n, ("a",)) == (min(uneven.parts(n, ("a",))) > 0)
    assert even.fills(4, ("a", "b"))
    assert not even.fills(3, ("a", "b"))
    assert not uneven.fills(3, ("a",))
