"""A mesh of devices, and which part of a dimension each member has.

A dimension of n along an axis of k members is cut into k consecutive parts. They
are as equal as they can be, the first ones larger by one where k does not divide n:
nothing is padded, so nothing has to be masked. A `#pcp.split` on the mesh makes
them proportional to its sizes instead: how unequal devices share a batch.

Along several axes, major to minor, each part is cut again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod

from pcp.dialect.attributes import ELASTIC, Split, axis_sizes
from pcp.dialect.base import as_integers, symbols
from pcp.dialect.bindings import ir
from pcp.passes.rewriting import refuse


@dataclass(frozen=True)
class Mesh:
    """Axes with their sizes, the last one fastest, and a device for each member."""

    name: str
    axes: dict[str, int]
    devices: tuple[str, ...] = ()
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, op: ir.Operation) -> "Mesh":
        """The mesh that a `pcp.mesh` op describes; an elastic axis is refused."""
        axes = axis_sizes(op.attributes["axes"])
        if elastic := [axis for axis, size in axes.items() if size == ELASTIC]:
            refuse(
                op,
                f'axis "{elastic[0]}" is elastic; a program can only be partitioned '
                "over axes of a known size",
            )
        name = ir.StringAttr(op.attributes["sym_name"]).value
        devices = symbols(op, "devices")
        named = [f"{name}_{i}" for i in range(prod(axes.values()))]
        return cls(name, axes, tuple(devices or named), _weights(op))

    @property
    def size(self) -> int:
        """How many members there are."""
        return prod(self.axes.values())

    @cached_property
    def members(self) -> list[dict[str, int]]:
        """Each member's coordinate along every axis, in the order of `devices`."""
        ranges = [range(size) for size in self.axes.values()]
        return [dict(zip(self.axes, place, strict=True)) for place in product(*ranges)]

    def count(self, axes: Sequence[str]) -> int:
        """The number of parts along `axes` together."""
        return prod(self.axes[axis] for axis in axes)

    def shares(self, axis: str, n: int) -> list[int]:
        """How n elements are cut along one axis, in order of the members."""
        weights = self.weights.get(axis) or (1,) * self.axes[axis]
        total = sum(weights)
        sizes = [n * w // total for w in weights]
        # What is left goes to those who lost most to rounding, the first of equals.
        lost = sorted(range(len(weights)), key=lambda i: -(n * weights[i] % total))
        for i in lost[: n - sum(sizes)]:
            sizes[i] += 1
        return sizes

    def part(
        self, n: int, axes: Sequence[str], place: dict[str, int]
    ) -> tuple[int, int]:
        """(offset, size) of a member's part of n elements cut along `axes`."""
        offset, size = 0, n
        for axis in axes:
            sizes = self.shares(axis, size)
            offset += sum(sizes[: place[axis]])
            size = sizes[place[axis]]
        return offset, size

    def parts(self, n: int, axes: Sequence[str]) -> list[int]:
        """The sizes of all parts of n elements, in order."""
        sizes = [n]
        for axis in axes:
            sizes = [share for size in sizes for share in self.shares(axis, size)]
        return sizes

    def is_even(self, n: int, axes: Sequence[str]) -> bool:
        """Whether all parts are equal."""
        return len(set(self.parts(n, axes))) == 1


def _weights(op: ir.Operation) -> dict[str, tuple[int, ...]]:
    if "split" not in op.attributes:
        return {}
    split = op.attributes["split"]
    splits = list(split) if isinstance(split, ir.ArrayAttr) else [split]
    return {
        ir.StringAttr(one.axis).value: tuple(as_integers(one.sizes, "split"))
        for one in splits
        if isinstance(one, Split)
    }


def read_meshes(module: ir.Module) -> dict[str, Mesh]:
    """Every mesh of a module by name."""
    return {
        mesh.name: mesh
        for op in module.body.operations
        if op.operation.name == "pcp.mesh"
        for mesh in [Mesh.read(op.operation)]
    }
