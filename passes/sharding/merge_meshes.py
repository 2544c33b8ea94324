"""Several meshes over the same devices, as parts of the axes of the first.

The members of two meshes with one list of devices are the same, numbered row by row.
An axis of the second mesh then is a run of parts of the first one's axes, where the
places at which axes begin nest. Over @a of 2 x 4 and @b of 4 x 2

    @a   x         y              @b   p               q
         (1)2      (1)4                (1)4            (1)2
    @a   x         y:(1)2  y:(2)2      x  y:(1)2       y:(2)2

so that p is x and y:(1)2. Behind this file a program has one mesh.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

from pcp.dialect.attributes import axis_sizes
from pcp.dialect.base import symbols
from pcp.dialect.bindings import ir
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import refuse
from pcp.passes.sharding import sub_axes

HINT = (
    "what runs on devices of its own is written as tasks of a pcp.schedule "
    "(docs/heterogeneous.md)"
)


def merge_meshes(module: ir.Module) -> None:
    """Let all that lies on another mesh than the first lie on that one.

    Refused where the devices differ, where axes do not nest, and where the members of
    one of them share in other proportions than equal ones.
    """
    with module.context:
        first, *others = sub_axes.meshes_of(module) or [None]
        for other in others:
            assert first is not None
            _check(first, other)
            _merge(module, first, other)
            other.erase()


def _check(first: ir.Operation, other: ir.Operation) -> None:
    one, two = symbol_name(first), symbol_name(other)
    counts = [prod(axis_sizes(op.attributes["axes"]).values()) for op in (first, other)]
    if counts[0] != counts[1]:
        refuse(
            other,
            f"@{two} has {counts[1]} members, and @{one} {counts[0]}: meshes of one "
            f"program are over the same devices; {HINT}",
        )
    lists = [symbols(op, "devices") for op in (first, other)]
    if lists[0] != lists[1]:
        refuse(
            other,
            f"@{two} and @{one} do not list the same devices in the same order; {HINT}",
        )
    for op in (first, other):
        if "split" in op.attributes:
            refuse(op, f"has unequal shares; @{one} and @{two} need equal ones")


def _begins(sizes: Sequence[int]) -> list[int]:
    """Where each axis begins, and the last one ends: products of the sizes before."""
    return [prod(sizes[:i]) for i in range(len(sizes) + 1)]


def _merge(module: ir.Module, first: ir.Operation, other: ir.Operation) -> None:
    ours, theirs = (axis_sizes(op.attributes["axes"]) for op in (first, other))
    points = sorted({*_begins([*ours.values()]), *_begins([*theirs.values()])})
    for low, high in pairwise(points):
        if high % low:
            refuse(
                other,
                f"its axes do not nest with those of @{symbol_name(first)}: one begins "
                f"at {low} members, another at {high}; take sizes of which one divides "
                "the other",
            )
    sub_axes.cut_axes(module, first, _cuts(ours, points))
    parts = axis_sizes(first.attributes["axes"])
    sub_axes.move(module, symbol_name(other), symbol_name(first), _runs(theirs, parts))


def _cuts(ours: dict[str, int], points: Sequence[int]) -> dict[str, list[int]]:
    """For each of our axes where its parts begin, counted from its own beginning."""
    begins = _begins([*ours.values()])
    return {
        axis: [p // begin for p in points if begin < p < end and p % begin == 0]
        for axis, (begin, end) in zip(ours, pairwise(begins), strict=True)
    }


def _runs(theirs: dict[str, int], parts: dict[str, int]) -> dict[str, tuple[str, ...]]:
    """The parts that are each of their axes, major to minor."""
    starts = dict(zip(parts, _begins([*parts.values()]), strict=False))
    ends = pairwise(_begins([*theirs.values()]))
    return {
        axis: tuple(_between(starts, parts, begin, end))
        for axis, (begin, end) in zip(theirs, ends, strict=True)
    }


def _between(
    starts: dict[str, int], parts: dict[str, int], begin: int, end: int
) -> Iterator[str]:
    """The parts between two places; those of one member are left out."""
    for part, start in starts.items():
        if begin <= start < end and parts[part] > 1:
            yield part
