"""How one tensor lies on a mesh, and in numpy its parts.

Plain values: what compiles a program and what runs it agree on parts here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pcp.mesh import Mesh

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """The axes that cut each dimension, major to minor.

    Over `unreduced` axes every member holds a partial sum of the value.
    """

    dims: tuple[Axes, ...]
    unreduced: Axes = ()

    @classmethod
    def replicated(cls, rank: int) -> "Layout":
        """The whole tensor everywhere."""
        return cls(((),) * rank)

    @property
    def axes(self) -> Axes:
        """Every axis that cuts a dimension."""
        return tuple(axis for dim in self.dims for axis in dim)

    @property
    def is_replicated(self) -> bool:
        """Whether every member holds the whole value."""
        return not self.unreduced and not any(self.dims)

    def reduced(self) -> "Layout":
        """The same dimensions, nothing pending."""
        return Layout(self.dims)

    def without(self, axes: Iterable[str]) -> "Layout":
        """The dimensions cut only by other axes."""
        gone = set(axes)
        kept = tuple(tuple(a for a in dim if a not in gone) for dim in self.dims)
        return Layout(kept, tuple(a for a in self.unreduced if a not in gone))

    def local_shape(
        self, shape: Sequence[int], mesh: Mesh, place: dict[str, int]
    ) -> tuple[int, ...]:
        """The shape of a member's part."""
        return tuple(
            mesh.part(n, axes, place)[1]
            for n, axes in zip(shape, self.dims, strict=True)
        )

    def slices(
        self, shape: Sequence[int], mesh: Mesh, place: dict[str, int]
    ) -> tuple[slice, ...]:
        """Where in the whole tensor a member's part lies."""
        parts = [
            mesh.part(n, axes, place) for n, axes in zip(shape, self.dims, strict=True)
        ]
        return tuple(slice(start, start + size) for start, size in parts)

    def fits(self, shape: Sequence[int], mesh: Mesh) -> bool:
        """Whether no dimension is cut into more parts than it has elements."""
        return all(
            not axes or mesh.count(axes) <= n
            for n, axes in zip(shape, self.dims, strict=True)
        )

    def __str__(self) -> str:
        """As text for remarks: `[dp, ., tp]`, with `+dp` for partial sums."""
        dims = ", ".join("·".join(axes) or "." for axes in self.dims)
        return f"[{dims}]" + "".join(f" +{axis}" for axis in self.unreduced)


# --- in numpy ---


def shard(array: np.ndarray, layout: Layout, mesh: Mesh) -> list[np.ndarray]:
    """Each member's part of an array, in the order of the mesh's members."""
    return [
        np.ascontiguousarray(array[layout.slices(array.shape, mesh, place)]).reshape(
            layout.local_shape(array.shape, mesh, place)
        )
        for place in mesh.members
    ]


def join(
    parts: Sequence[np.ndarray | None],
    shape: Sequence[int],
    layout: Layout,
    mesh: Mesh,
) -> np.ndarray:
    """The whole array from each member's part; None for a member without one.

    Raises `ValueError` where two members hold different bits, or nobody holds some.
    """
    present = [part for part in parts if part is not None]
    if not present:
        raise ValueError("no member holds it")
    whole = np.zeros(tuple(shape), present[0].dtype)
    seen = np.zeros(tuple(shape), bool)
    for place, part in zip(mesh.members, parts, strict=True):
        if part is None:
            continue
        where = layout.slices(shape, mesh, place)
        old = whole[where][seen[where]]
        if old.tobytes() != part[seen[where]].tobytes():
            raise ValueError(f"members hold different values of {layout}")
        whole[where], seen[where] = part, True
    if not seen.all():
        raise ValueError(f"no member holds some parts of {layout}")
    return whole
