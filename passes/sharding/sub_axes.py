"""Parts of a mesh's axes: `"x:(2)4"` is the part of size 4 that lies inside of 2.

A part is written as Shardy writes it, `(pre)size`: an axis of 16 taken apart as
2 x 4 x 2 has the parts `x:(1)2`, `x:(2)4` and `x:(8)2`, major to minor. A mesh with
such axes in place of the whole one is the same mesh, member by member, so nothing
behind this file knows of parts: where one is named the axis gives way to its parts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from pcp.dialect.attributes import Dim, Sharding, axis_sizes
from pcp.dialect.base import symbol, symbols
from pcp.dialect.bindings import ir
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import operations, refuse
from pcp.passes.sharding.layout import SHARDING
from pcp.passes.sharding.mesh import is_elastic, weights

#: Attributes that hold shardings.
_HOLDERS = (SHARDING, "sharding", "arg_attrs", "res_attrs")

_PART = re.compile(r"(.+):\((\d+)\)(\d+)")

#: Of an axis, where its parts begin: the product of the sizes of those before.
Cuts = Mapping[str, Iterable[int]]

#: The axes that take an axis's place, or a part's.
Parts = Mapping[str, tuple[str, ...]]


def refine(module: ir.Module) -> None:
    """Let the parts that the module names be axes of its mesh.

    Refused where the parts of an axis overlap, do not divide it, or lie on an axis
    whose members share in other proportions than equal ones.
    """
    with module.context:
        for mesh in meshes_of(module):
            sizes = axis_sizes(mesh.attributes["axes"])
            named = [n for n in _named(module) if n not in sizes and _PART.fullmatch(n)]
            if named:
                cut_axes(module, mesh, _cuts_of(mesh, sizes, named))


def cut_axes(module: ir.Module, mesh: ir.Operation, cuts: Cuts) -> None:
    """Take the mesh's axes apart where `cuts` says, and name the parts everywhere."""
    sizes = axis_sizes(mesh.attributes["axes"])
    parts: dict[str, tuple[str, ...]] = {}
    axes: dict[str, int] = {}
    for axis, size in sizes.items():
        found = _parts(mesh, axis, size, cuts.get(axis, ()))
        axes |= found
        parts |= _places(axis, found)
    written = ", ".join(f'#pcp.axis<"{axis}", {size}>' for axis, size in axes.items())
    mesh.attributes["axes"] = ir.Attribute.parse(f"[{written}]")
    name = symbol_name(mesh)
    move(module, name, name, parts)


def meshes_of(module: ir.Module) -> list[ir.Operation]:
    """The `pcp.mesh` ops of a known size."""
    ops = (view.operation for view in module.body.operations)
    return [op for op in ops if op.name == "pcp.mesh" and not is_elastic(op)]


def _cuts_of(
    mesh: ir.Operation, sizes: Mapping[str, int], named: Iterable[str]
) -> dict[str, set[int]]:
    cuts: dict[str, set[int]] = {}
    for name in named:
        axis, before, size = _read(name)
        if not before * size or sizes.get(axis, 1) % (before * size):
            have = ", ".join(f"{axis} of {n}" for axis, n in sizes.items())
            refuse(mesh, f'has no part "{name}" of an axis (axes: {have})')
        cuts.setdefault(axis, set()).update((before, before * size))
    return cuts


def _read(name: str) -> tuple[str, int, int]:
    """Of a part the axis, the sizes before it, and its own."""
    match = _PART.fullmatch(name)
    return (match[1], int(match[2]), int(match[3])) if match else (name, 1, 0)


def _parts(
    mesh: ir.Operation, axis: str, size: int, cuts: Iterable[int]
) -> dict[str, int]:
    """The axes in place of one, with their sizes, major to minor."""
    points = sorted({1, size, *cuts})
    if len(points) <= 2:
        return {axis: size}
    if axis in weights(mesh):
        refuse(mesh, f'axis "{axis}" has unequal shares, so there are no parts of it')
    base, before, _ = _read(axis)
    for one, two in pairwise(points):
        if two % one:
            refuse(
                mesh,
                f'parts of axis "{axis}" of {size} overlap: one ends at {one}, another '
                f"at {two}; take parts whose sizes divide each other",
            )
    return {
        f"{base}:({before * one}){two // one}": two // one
        for one, two in pairwise(points)
    }


def _places(axis: str, found: Mapping[str, int]) -> Parts:
    """What stands for the axis, and for every run of its parts."""
    names = list(found)
    base = _read(axis)[0]
    runs = {axis: tuple(names)}
    for start in range(len(names)):
        before, run = _read(names[start])[1], 1
        for end in range(start, len(names)):
            run *= found[names[end]]
            runs[f"{base}:({before}){run}"] = tuple(names[start : end + 1])
    return runs


# --- names in attributes ---


def _named(module: ir.Module) -> set[str]:
    """Every axis that a sharding in the module names."""
    found = {
        sharding
        for op in operations(module)
        for holder in _HOLDERS
        if holder in op.attributes
        for sharding in _shardings(op.attributes[holder])
    }
    return {axis for sharding in found for axis in _axes_of(sharding)}


def _shardings(attribute: ir.Attribute) -> Iterator[Sharding]:
    if isinstance(attribute, Sharding):
        yield attribute
    elif isinstance(attribute, ir.ArrayAttr):
        for inner in attribute:
            yield from _shardings(inner)
    elif isinstance(attribute, ir.DictAttr):
        for named in attribute:
            yield from _shardings(named.attr)


def _axes_of(sharding: Sharding) -> Iterator[str]:
    for part in (sharding.dims, sharding.replicated, sharding.unreduced):
        yield from re.findall(r'"([^"]*)"', str(part))


def move(module: ir.Module, old: str, new: str, parts: Parts) -> None:
    """Let what lies on mesh `@old` lie on `@new`, along parts in place of axes.

    That is shardings, and collectives that are written.
    """
    change = _Move(old, ir.FlatSymbolRefAttr.get(new, module.context), parts)
    for op in operations(module):
        for holder in _HOLDERS:
            if holder in op.attributes:
                op.attributes[holder] = change.of(op.attributes[holder])
        is_collective = op.name.startswith("pcp.") and op.name != "pcp.mesh"
        if is_collective and "axes" in op.attributes and symbol(op, "mesh") == old:
            op.attributes["axes"] = _strings(ir.ArrayAttr(op.attributes["axes"]), parts)
            op.attributes["mesh"] = change.new


@dataclass(frozen=True)
class _Move:
    """Parts of a new mesh's axes in place of an old one's."""

    old: str
    new: ir.Attribute
    parts: Parts

    def of(self, attribute: ir.Attribute) -> ir.Attribute:
        """The attribute with all shardings inside of it moved."""
        if isinstance(attribute, Sharding):
            return self._sharding(attribute)
        if isinstance(attribute, ir.ArrayAttr) and next(_shardings(attribute), None):
            return ir.ArrayAttr.get([self.of(inner) for inner in attribute])
        if isinstance(attribute, ir.DictAttr) and next(_shardings(attribute), None):
            return ir.DictAttr.get({n.name: self.of(n.attr) for n in attribute})
        return attribute

    def _sharding(self, sharding: Sharding) -> ir.Attribute:
        if ir.FlatSymbolRefAttr(sharding.mesh).value != self.old:
            return sharding
        dims = [_dim(dim, self.parts) for dim in ir.ArrayAttr(sharding.dims)]
        rest = [
            _strings(ir.ArrayAttr(axes), self.parts)
            for axes in (sharding.replicated, sharding.unreduced)
        ]
        return Sharding.get(self.new, ir.ArrayAttr.get(dims), *rest)


def _dim(dim: ir.Attribute, parts: Parts) -> ir.Attribute:
    if isinstance(dim, Dim):
        axes = _strings(ir.ArrayAttr(dim.axes), parts)
        return Dim.get(axes, dim.closed, dim.priority)
    return _strings(ir.ArrayAttr(dim), parts)


def _strings(axes: ir.ArrayAttr, parts: Parts) -> ir.Attribute:
    names = [ir.StringAttr(axis).value for axis in axes]
    new = [part for name in names for part in parts.get(name, (name,))]
    return ir.ArrayAttr.get([ir.StringAttr.get(name) for name in new])


# --- several meshes ---

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
        first, *others = meshes_of(module) or [None]
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
    cut_axes(module, first, _cuts(ours, points))
    parts = axis_sizes(first.attributes["axes"])
    move(module, symbol_name(other), symbol_name(first), _runs(theirs, parts))


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
