"""Axes that a reshape takes apart: where their parts have to begin.

Rows of 8 that an axis of 4 cuts become 2 x 4: the axis ends inside of the second
dimension, so that only its parts, 2 and 2, cut the result. Shardy splits axes so.
"""

from collections.abc import Iterator, Sequence

from pcp.layout import Axes
from pcp.mesh import WORKERS, Mesh
from pcp.passes.sharding.factors import Dim, FactorRule
from pcp.passes.sharding.propagation import Propagation

#: Axes that what comes behind knows by name.
WHOLE = ("pp", WORKERS)

#: An axis, and the place in it at which a part begins.
Cut = tuple[str, int]


def cuts_at_reshapes(found: Propagation) -> Iterator[Cut]:
    """Where axes have to be cut for layouts to pass the reshapes of a function."""
    for node in found.graph.nodes:
        if node.op.name != "stablehlo.reshape":
            continue
        sides = [found.tensors[value] for value in node.values]
        for one, other in ((0, 1), (1, 0)):
            open_ = _open_factors(node.rule.tensors[other], sides[other].closed)
            for dim, axes in zip(node.rule.tensors[one], sides[one].dims, strict=True):
                yield from _cut(node.rule, dim, axes, found.mesh, open_)


def _open_factors(dims: Sequence[Dim], closed: Sequence[bool]) -> set[int]:
    """The factors of dimensions that may be cut further."""
    pairs = zip(dims, closed, strict=True)
    return {factor for dim, shut in pairs if not shut for factor in dim}


def _cut(
    rule: FactorRule, dim: Dim, axes: Axes, mesh: Mesh, open_: set[int]
) -> Iterator[Cut]:
    """The place in the axis with which a dimension leaves one of its factors."""
    room = iter(dim)
    factor, left = next(room, None), 0
    whole = 1
    for each in dim:
        whole *= rule.sizes[each]
    for number, axis in enumerate(axes):
        size = mesh.axes[axis]
        while factor is not None and left == 0:
            left = rule.sizes[factor]
        if factor is None or whole % mesh.count(axes[: number + 1]):
            return
        if left >= size:
            if left % size:
                return
            left //= size
            if left == 1:
                factor, left = next(room, None), 0
            continue
        usable = axis not in WHOLE and axis not in mesh.weights
        if usable and left > 1 and size % left == 0 and factor in open_:
            yield axis, left
        return
