"""A mesh of devices, and which part of a dimension each member has.

A dimension of n along an axis of k members is cut into k consecutive parts. They
are as equal as they can be, the first ones larger by one where k does not divide n:
nothing is padded, so nothing has to be masked. A `#pcp.split` on the mesh makes
them proportional to its sizes instead: how unequal devices share a batch.

Along several axes, major to minor, each part is cut again.

Plain values: what compiles a program and what runs it agree on parts here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod

#: The axis of those that each run a whole program, which may itself be spread: an outer
#: algorithm joins them. It cuts nothing, so it is of no `Mesh` of a program.
WORKERS = "workers"


@dataclass(frozen=True)
class Mesh:
    """Axes with their sizes, the last one fastest, and a device for each member.

    `unlike` are the axes along which members run code compiled for other targets:
    what two of them compute alike may differ in the last place.
    """

    name: str
    axes: dict[str, int]
    devices: tuple[str, ...] = ()
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unlike: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        """How many members there are."""
        return prod(self.axes.values())

    def times(self, workers: int) -> "Mesh":
        """So many copies of the mesh along an axis of workers, worker by worker."""
        axes = {WORKERS: workers, **self.axes}
        return Mesh(self.name, axes, weights=self.weights)

    def differing(self, codes: Mapping[str, str]) -> frozenset[str]:
        """The axes along which `codes`, by device, change; unnamed ones are alike."""
        code = {
            tuple(place.items()): codes.get(device, "")
            for place, device in zip(self.members, self.devices, strict=True)
        }
        return frozenset(
            axis
            for axis in self.axes
            for place, own in code.items()
            if own != code[tuple((dict(place) | {axis: 0}).items())]
        )

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

    def fills(self, n: int, axes: Sequence[str]) -> bool:
        """Whether every part of n elements has at least one."""
        if not any(axis in self.weights for axis in axes):
            return self.count(axes) <= n
        return min(self.parts(n, axes)) > 0

    def is_even(self, n: int, axes: Sequence[str]) -> bool:
        """Whether all parts are equal."""
        return len(set(self.parts(n, axes))) == 1
