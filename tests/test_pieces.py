"""Pieces: numpy says what each rank holds, and sums along rings are sums of islands."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pcp.layout import Layout, join, shard
from pcp.mesh import Mesh
from pcp.pieces import common, pieces, rings, within

AXES = ("tp", "dp")


@st.composite
def lies(draw: st.DrawFn, rank: int) -> tuple[Layout, Mesh]:
    """A mesh of one or two axes, each cuts one dimension or none."""
    sizes = {axis: draw(st.integers(1, 3)) for axis in AXES[: draw(st.integers(1, 2))]}
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis in draw(st.permutations([*sizes])):
        if rank and draw(st.booleans()):
            dims[draw(st.integers(0, rank - 1))].append(axis)
    weighted = draw(st.booleans())
    weights = {"tp": tuple(range(1, sizes["tp"] + 1))} if weighted else {}
    return Layout(tuple(map(tuple, dims))), Mesh("m", sizes, weights=weights)


@st.composite
def worlds(draw: st.DrawFn):
    """A tensor's shape, how it lies in each of up to three shapes, and islands."""
    shape = draw(st.lists(st.integers(1, 7), max_size=3))
    given_ = [draw(lies(len(shape))) for _ in range(draw(st.integers(1, 3)))]
    island = st.integers(0, len(given_) - 1)
    return shape, given_, draw(st.lists(island, min_size=1, max_size=4))


@given(worlds())
def test_pieces_are_all_of_the_tensor_once(world) -> None:
    shape, given_, _ = world
    seen = np.zeros(shape, int)
    for held, boxes in pieces(shape, given_).items():
        for box in boxes:
            seen[box] += 1
            for (layout, mesh), ranks in zip(given_, held, strict=True):
                assert ranks
                for rank, place in enumerate(mesh.members):
                    own = layout.slices(shape, mesh, place)
                    assert (rank in ranks) == (common(box, own) == box)
                    assert (rank in ranks) or common(box, own) is None
    assert (seen == 1).all()


@given(worlds())
def test_sums_along_rings_are_sums_of_islands(world) -> None:
    """Each rank gets all of its part from rings in which it is."""
    shape, given_, islands = world
    random = np.random.default_rng(0)
    wholes = [random.integers(-99, 99, shape).astype(float) for _ in islands]
    held_by = [
        shard(whole, *given_[s]) for whole, s in zip(wholes, islands, strict=True)
    ]
    results = [[np.full_like(part, np.nan) for part in ranks] for ranks in held_by]
    present = sorted(set(islands))
    for held, boxes in pieces(shape, given_).items():
        for ring in rings(held, present):
            for box in boxes:
                views = []
                for island, shape_of in enumerate(islands):
                    layout, mesh = given_[shape_of]
                    rank = ring[present.index(shape_of)]
                    own = layout.slices(shape, mesh, mesh.members[rank])
                    at = within(box, own)
                    views.append((held_by[island][rank][at], results[island][rank], at))
                total = sum(view for view, _, _ in views)
                for _, result, at in views:
                    result[at] = total
    for island, shape_of in enumerate(islands):
        whole = join(results[island], shape, *given_[shape_of])
        assert (whole == sum(wholes)).all()


def test_the_first_ring_is_of_owners() -> None:
    """Four devices with tp and dp, two with tp, and one."""
    cut, whole = Layout(((), ("tp",))), Layout.replicated(2)
    four, two, one = (Mesh("m", a) for a in ({"dp": 2, "tp": 2}, {"tp": 2}, {"tp": 1}))
    found = pieces((4, 6), [(cut, four), (cut, two), (whole, one)])
    left = (slice(0, 4), slice(0, 3))
    assert found[(0, 2), (0,), (0,)] == [left]
    assert rings(((0, 2), (0,), (0,)), [0, 1, 2]) == [(0, 0, 0), (2, 0, 0)]
    assert rings(((0, 2), (0,), (0,)), [1, 2]) == [(0, 0)]
    assert len(found) == 2
