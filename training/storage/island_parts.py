"""A state as the ranks of an island hold it: the parts, the whole, and digests of both.

    parts.cut(whole, coordinate)   a rank's part of each tensor
    parts.join(by coordinate)      the whole tensors
    parts.digest(whole)            as a commit records it: of the parts' digests

What cuts a tensor is the compiled program's layout of it, by the role that its name in
a state stands for (`pcp.training.storage.state_names`). A tensor that the program does
not cut, each rank holds whole.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from pcp.errors import StateMismatch
from pcp.layout import Layout, join
from pcp.manifest import Manifest, TensorSpec
from pcp.mesh import Mesh
from pcp.training.storage import safetensors_io
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import (
    FROZEN,
    INNER,
    OUTER,
    PARAMETER,
    PRIVATE,
    REPLICA,
    STATE,
)

Digests = Sequence[str | None]
_SHARED_INNER = "inner."
"""In front of the inner optimizer's state where it is among the outer state."""


def joined_digest(digests: Digests) -> str | None:
    """Of a state, from those of its parts by coordinate; None if one is missing."""
    if len(digests) == 1 or None in digests:
        return digests[0] if len(digests) == 1 else None
    lines = "".join(f"{at} {digest}\n" for at, digest in enumerate(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def port_of(name: str) -> tuple[str, str]:
    """The role and the name in the program of a tensor of a state."""
    kind, _, rest = name.partition("/")
    kind += "/"
    if kind in (PRIVATE, INNER):
        rest = rest.partition("/")[2]
    if kind == PRIVATE and rest.startswith(REPLICA):
        return "param", rest.removeprefix(REPLICA)
    if kind == OUTER and rest.startswith(_SHARED_INNER):
        return "state", rest.removeprefix(_SHARED_INNER)
    return _ROLES.get(kind, ""), rest


@dataclass(frozen=True)
class IslandParts:
    """How an island's `mesh` cuts the tensors of a state.

    `whole` has the shape and the layout of each that is cut, by its role and name.
    """

    mesh: Mesh
    whole: Mapping[tuple[str, str], tuple[tuple[int, ...], Layout]]

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Of a bundle; of one that is not spread, one part."""
        found: dict[tuple[str, str], tuple[tuple[int, ...], Layout]] = {}
        for spec in _specs(manifest):
            if not spec.layout.is_replicated:
                found.setdefault((spec.role, spec.name), (spec.shape, spec.layout))
        return cls(manifest.worker_mesh(), found)

    @classmethod
    def read(cls, noted: Mapping[str, Any] | None) -> Self:
        """From what `noted` gave; of None one part."""
        if noted is None:
            return cls(Mesh("", {}), {})
        weights = {axis: tuple(w) for axis, w in noted["weights"].items()}
        whole = {
            (role, name): (tuple(shape), Layout(tuple(map(tuple, dims))))
            for role, name, shape, dims in noted["cut"]
        }
        return cls(Mesh("island", dict(noted["axes"]), weights=weights), whole)

    @property
    def noted(self) -> dict[str, Any] | None:
        """For a checkpoint: what JSON can hold; None where nothing is cut."""
        if self.size == 1:
            return None
        cut = [
            [role, name, list(shape), [list(axes) for axes in layout.dims]]
            for (role, name), (shape, layout) in self.whole.items()
        ]
        weights = {axis: list(w) for axis, w in self.mesh.weights.items()}
        return {"axes": dict(self.mesh.axes), "weights": weights, "cut": cut}

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.mesh.size

    @cached_property
    def axes(self) -> str:
        """The mesh as it is asked for: `pp=2,tp=2`."""
        return ",".join(f"{axis}={size}" for axis, size in self.mesh.axes.items())

    def where(self, name: str, coordinate: int) -> tuple[slice, ...] | None:
        """Where a rank's part of a tensor of a state lies; None: it holds all of it."""
        known = self.whole.get(port_of(name))
        if known is None:
            return None
        shape, layout = known
        return layout.slices(shape, self.mesh, self.mesh.members[coordinate])

    def part(self, name: str, array: np.ndarray, coordinate: int) -> np.ndarray:
        """A rank's part of a tensor; one that is not the whole stays as it is."""
        at = self.where(name, coordinate)
        if at is None or array.shape != self.whole[port_of(name)][0]:
            return array
        return np.ascontiguousarray(array[at])

    def cut(self, arrays: Mapping[str, np.ndarray], coordinate: int) -> Arrays:
        """A rank's part of each tensor of a state."""
        return {k: self.part(k, array, coordinate) for k, array in arrays.items()}

    def join(self, parts: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
        """The whole tensors of what the ranks hold, by coordinate.

        `StateMismatch` where ranks that hold the same elements differ in them.
        """
        if len(parts) == 1:
            return dict(parts[0])
        if any(part.keys() != parts[0].keys() for part in parts):
            raise StateMismatch("the ranks of an island hold different tensors")
        return {name: self._joined(name, [p[name] for p in parts]) for name in parts[0]}

    def digest(self, shared: Mapping[str, np.ndarray]) -> str:
        """Of a whole state, as its ranks' parts have it together."""
        found = joined_digest(
            [safetensors_io.digest(self.cut(shared, at)) for at in range(self.size)]
        )
        assert found is not None, "every part has a digest"
        return found

    def copies(self, names: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
        """The tensors that several ranks hold alike, by the axes that do not cut them.

        Ranks that differ along these axes alone hold the same elements.
        """
        found: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            known = self.whole.get(port_of(name))
            cuts = known[1].axes if known is not None else ()
            along = tuple(axis for axis in self.mesh.axes if axis not in cuts)
            if self.mesh.count(along) > 1:
                found.setdefault(along, []).append(name)
        return found

    def _joined(self, name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
        known = self.whole.get(port_of(name))
        shape, layout = known or (
            parts[0].shape,
            Layout.replicated(parts[0].ndim),
        )
        try:
            return join(parts, shape, layout, self.mesh)
        except ValueError as error:
            raise StateMismatch(f"{name}: {error}") from error


WHOLE = IslandParts(Mesh("", {}), {})
"""Of a member that holds all of a state itself."""

_ROLES = {
    PARAMETER: "param",
    STATE: "model_state",
    OUTER: "outer",
    PRIVATE: "private",
    INNER: "state",
    FROZEN: "frozen",
}
"""The role of a state's tensors by the first part of their names."""


def _specs(manifest: Manifest) -> list[TensorSpec]:
    """What crosses the border of a function, that which is kept between calls first."""
    known = ("init", "outer_init", "apply", "grad", "outer_step", "grad_sync")
    functions = [manifest.functions[n] for n in known if n in manifest.functions]
    kept = [spec for function in functions for spec in function.results]
    return [*kept, *(spec for function in functions for spec in function.inputs)]
