"""Island parts: the parts of a state on the ranks, the whole, and their digests.

    parts.cut(whole, coordinate)   a rank's part of each tensor
    parts.join(by coordinate)      the whole tensors
    parts.digest(whole)            as a commit records it: of the parts' digests

A tensor is cut by its layout in the compiled program, found by its role and its name in
a state (`pcp.training.storage.state_names`). Each rank holds the whole of a tensor that
the program does not cut; in a program of pipeline stages, each rank of the stages that
have the tensor.
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
Port = tuple[str, str]
"""The role and the name of a state's tensor in the program."""
_SHARED_INNER = "inner."
"""The prefix of the inner optimizer's state among the outer state."""


def joined_digest(digests: Digests) -> str | None:
    """The digest of a state from those of its parts; None if one is missing."""
    if len(digests) == 1 or None in digests:
        return digests[0] if len(digests) == 1 else None
    lines = "".join(f"{at} {digest}\n" for at, digest in enumerate(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def port_of(name: str) -> Port:
    """The role and the name in the program of a state's tensor, by its name."""
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

    `whole` has the shape and the layout of each cut tensor, by role and name; `lacks`,
    by coordinate, the tensors of which a rank has no part.
    """

    mesh: Mesh
    whole: Mapping[Port, tuple[tuple[int, ...], Layout]]
    lacks: Sequence[frozenset[Port]] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """The parts by a bundle; a bundle for one device has one part."""
        found: dict[Port, tuple[tuple[int, ...], Layout]] = {}
        for spec in _specs(manifest):
            if not spec.layout.is_replicated:
                found.setdefault((spec.role, spec.name), (spec.shape, spec.layout))
        mesh = manifest.worker_mesh()
        return cls(mesh, found, _lacking(manifest, mesh))

    @classmethod
    def read(cls, noted: Mapping[str, Any] | None) -> Self:
        """The parts by the value of `noted`; None means one part."""
        if noted is None:
            return cls(Mesh("", {}), {})
        weights = {axis: tuple(w) for axis, w in noted["weights"].items()}
        whole = {
            (role, name): (tuple(shape), Layout(tuple(map(tuple, dims))))
            for role, name, shape, dims in noted["cut"]
        }
        lacks = [frozenset(map(tuple, ports)) for ports in noted.get("lacks", ())]
        return cls(Mesh("island", dict(noted["axes"]), weights=weights), whole, lacks)

    @property
    def noted(self) -> dict[str, Any] | None:
        """The parts as a value for JSON; None where no tensor is cut."""
        return None if self.size == 1 else self.described

    @property
    def described(self) -> dict[str, Any]:
        """The parts as a value for JSON, a whole device's too."""
        cut = [
            [role, name, list(shape), [list(axes) for axes in layout.dims]]
            for (role, name), (shape, layout) in self.whole.items()
        ]
        weights = {axis: list(w) for axis, w in self.mesh.weights.items()}
        noted = {"axes": dict(self.mesh.axes), "weights": weights, "cut": cut}
        if self.lacks:
            noted["lacks"] = [sorted(map(list, ports)) for ports in self.lacks]
        return noted

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.mesh.size

    @cached_property
    def axes(self) -> str:
        """The mesh as an option: `pp=2,tp=2`."""
        return ",".join(f"{axis}={size}" for axis, size in self.mesh.axes.items())

    def holds(self, name: str, coordinate: int) -> bool:
        """Whether a rank has a part of a state's tensor."""
        return not self.lacks or port_of(name) not in self.lacks[coordinate]

    def where(self, name: str, coordinate: int) -> tuple[slice, ...] | None:
        """The slices of a rank's part of a state's tensor; None: the whole tensor."""
        known = self.whole.get(port_of(name))
        if known is None:
            return None
        shape, layout = known
        return layout.slices(shape, self.mesh, self.mesh.members[coordinate])

    def part(self, name: str, array: np.ndarray, coordinate: int) -> np.ndarray:
        """A rank's part of a tensor; an array that is a part already is unchanged."""
        at = self.where(name, coordinate)
        if at is None or array.shape != self.whole[port_of(name)][0]:
            return array
        return np.ascontiguousarray(array[at])

    def cut(self, arrays: Mapping[str, np.ndarray], coordinate: int) -> Arrays:
        """The parts of a state's tensors that a rank has."""
        return {
            name: self.part(name, array, coordinate)
            for name, array in arrays.items()
            if self.holds(name, coordinate)
        }

    def join(self, parts: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
        """The whole tensors, joined from the ranks' parts by coordinate.

        `StateMismatch` where ranks differ in elements that both hold, or a rank lacks a
        part.
        """
        if len(parts) == 1:
            return dict(parts[0])
        names = dict.fromkeys(name for part in parts for name in part)
        for at, part in enumerate(parts):
            if part.keys() != {name for name in names if self.holds(name, at)}:
                raise StateMismatch("the ranks of an island hold different tensors")
        return {
            name: self._joined(name, [p.get(name) for p in parts]) for name in names
        }

    def digest(self, shared: Mapping[str, np.ndarray]) -> str:
        """The digest of a whole state, made of the digests of its parts."""
        found = joined_digest(
            [safetensors_io.digest(self.cut(shared, at)) for at in range(self.size)]
        )
        assert found is not None, "every part has a digest"
        return found

    def holders(self, port: Port) -> int:
        """How many ranks hold each element of a tensor, or of its gradient."""
        role, name = port
        held = ("param", name) if role == "grad" else port
        without = sum(held in lacking for lacking in self.lacks)
        known = self.whole.get(port)
        pieces = self.mesh.count(known[1].axes) if known is not None else 1
        return (self.size - without) // pieces

    def copies(self, names: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
        """The tensors that several ranks hold, by the axes that do not cut them.

        Ranks that differ along these axes alone hold the same elements. A tensor that
        only some pipeline stages have is made by one of them for the others.
        """
        found: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            known = self.whole.get(port_of(name))
            cuts = known[1].axes if known is not None else ()
            cuts = (*cuts, *self._staged(name))
            along = tuple(axis for axis in self.mesh.axes if axis not in cuts)
            if self.mesh.count(along) > 1:
                found.setdefault(along, []).append(name)
        return found

    def axes_inside(self, manifest: Manifest) -> list[tuple[str, ...]]:
        """The axes along which the ranks of an island form groups.

        They are those of the program's collectives (without any: all ranks), and those
        along which ranks hold copies of shared state.
        """
        if self.size == 1:
            return []
        calls, inside = manifest.all_collectives(), set(self.mesh.axes)
        wanted = {c.axes for c in calls if inside.issuperset(c.axes)}
        kept = [t for f in manifest.functions.values() for t in f.results]
        shared = [(prefix, _ROLES[prefix]) for prefix in (PARAMETER, STATE, OUTER)]
        names = [at + t.name for t in kept for at, role in shared if t.role == role]
        names += [f"{OUTER}{_SHARED_INNER}{t.name}" for t in kept if t.role == "state"]
        return sorted(wanted | self.copies(names).keys())

    def _staged(self, name: str) -> list[str]:
        """The axes along which some ranks have a tensor and others lack it."""
        if not self.lacks:
            return []
        members = [tuple(place.items()) for place in self.mesh.members]
        held = {m: self.holds(name, at) for at, m in enumerate(members)}
        return [
            axis
            for axis in self.mesh.axes
            if any(
                held[m] != held[tuple((dict(m) | {axis: 0}).items())] for m in members
            )
        ]

    def _joined(self, name: str, parts: Sequence[np.ndarray | None]) -> np.ndarray:
        first = next(part for part in parts if part is not None)
        known = self.whole.get(port_of(name))
        shape, layout = known or (first.shape, Layout.replicated(first.ndim))
        try:
            return join(parts, shape, layout, self.mesh)
        except ValueError as error:
            raise StateMismatch(f"{name}: {error}") from error


WHOLE = IslandParts(Mesh("", {}), {})
"""The parts of a member that holds the whole state."""

_ROLES = {
    PARAMETER: "param",
    STATE: "model_state",
    OUTER: "outer",
    PRIVATE: "private",
    INNER: "state",
    FROZEN: "frozen",
}
"""The role of a state's tensor by the first part of its name."""


def _lacking(manifest: Manifest, mesh: Mesh) -> Sequence[frozenset[Port]]:
    """By coordinate, the tensors that a rank's program lacks and another's has.

    Empty where all ranks have parts of all tensors.
    """
    kept = set(_ROLES.values())
    programs = [manifest.programs[device] for device in mesh.devices]
    held = [
        {
            (spec.role, spec.name)
            for function in program.functions.values()
            for spec in (*function.inputs, *function.results)
            if spec.role in kept
        }
        for program in programs
    ]
    every = frozenset[Port]().union(*held)
    return [every - own for own in held] if any(every - own for own in held) else ()


def _specs(manifest: Manifest) -> list[TensorSpec]:
    """The arguments and results of functions, kept ones first."""
    known = ("init", "outer_init", "apply", "grad", "outer_step", "grad_sync")
    functions = [manifest.functions[n] for n in known if n in manifest.functions]
    kept = [spec for function in functions for spec in function.results]
    return [*kept, *(spec for function in functions for spec in function.inputs)]
