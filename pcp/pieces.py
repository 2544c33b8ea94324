"""Pieces: where the parts of one tensor in unlike layouts meet.

Islands of unlike shape (one of two devices with `tp=2`, one whole device) hold one
logical state and cut it differently: no rank of one island has all elements of a rank
of another. What is exchanged or compared is a piece, a box of elements that no layout
cuts further. In each shape the same ranks hold all of it.

    shape tp=2     │ rank 0 │ rank 1 │        pieces of a tensor that tp cuts:
    shape tp=1     │      rank 0     │        0 and 0;  1 and 0
                                              of one that nothing cuts: 0, 1 and 0

A ring is one rank of each shape, and stands for one rank of each island. A piece is
reduced along rings that together have every rank that holds it; the first of them is
the piece's own, and its ranks own the piece in their islands. All ranks form and use
rings in the order of the rings, so that none waits for one that waits for it.

Plain values: what compiles a program and what runs it agree on pieces here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from pcp.layout import Layout
from pcp.mesh import Mesh

Box = tuple[slice, ...]
Holders = tuple[tuple[int, ...], ...]
"""By shape, the ranks that hold a piece, the first one first."""
Ring = tuple[int, ...]
"""By shape, one rank."""


@dataclass(frozen=True)
class Reduction:
    """What a rank reduces along one ring: boxes of its part, and which it takes.

    A box that lies on several of its rings is taken from the first one.
    """

    ring: Ring
    boxes: Sequence[Box]
    taken: Sequence[Box]


def pieces(
    shape: Sequence[int], lies: Sequence[tuple[Layout, Mesh]]
) -> dict[Holders, list[Box]]:
    """The pieces of a tensor of this shape, by who holds them.

    `lies` is how the tensor lies in each shape of islands.
    """
    parts = [
        [layout.slices(shape, mesh, place) for place in mesh.members]
        for layout, mesh in lies
    ]
    edges = [
        _edges(n, (own[d] for ranks in parts for own in ranks))
        for d, n in enumerate(shape)
    ]
    found: dict[Holders, list[Box]] = {}
    for sides in product(*(pairwise(along) for along in edges)):
        box = tuple(slice(start, stop) for start, stop in sides)
        held = tuple(
            tuple(rank for rank, own in enumerate(ranks) if _inside(box, own))
            for ranks in parts
        )
        found.setdefault(held, []).append(box)
    return found


def rings(held: Holders, present: Sequence[int]) -> list[Ring]:
    """The rings along which a piece is reduced, the piece's own first.

    `present` are the shapes of the islands that take part; a ring has a rank of each.
    """
    here = [held[shape] for shape in present]
    most = max(len(ranks) for ranks in here)
    return [tuple(ranks[n % len(ranks)] for ranks in here) for n in range(most)]


def within(box: Box, own: Box) -> Box:
    """Where a box of the whole tensor lies in the part `own` that has it."""
    return tuple(
        slice(side.start - part.start, side.stop - part.start)
        for side, part in zip(box, own, strict=True)
    )


def common(one: Box, other: Box) -> Box | None:
    """The elements that two boxes share; None without any."""
    found = tuple(
        slice(max(a.start, b.start), min(a.stop, b.stop))
        for a, b in zip(one, other, strict=True)
    )
    return found if all(side.start < side.stop for side in found) else None


def _edges(n: int, sides: Iterable[slice]) -> list[int]:
    """Where a dimension of n elements is cut by any part."""
    cuts = {0, n}
    for side in sides:
        cuts |= {side.start, side.stop}
    return sorted(cuts)


def _inside(box: Box, own: Box) -> bool:
    return all(
        part.start <= side.start and side.stop <= part.stop
        for side, part in zip(box, own, strict=True)
    )
