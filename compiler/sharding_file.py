"""Which tensors are cut along which axes, by name: `--sharding FILE`.

    {"tensors": {"x": [["dp"]], "layers.*.qkv": [[], ["tp"]], "*": []}}

A pattern is matched against a tensor's name (`fnmatch`); the first that fits
decides. An entry lists the axes of each dimension, later ones left out are whole.
What the program says itself holds before a pattern; a name of the file that says
otherwise than the program is an error. State of the optimizer (`m.w`) lies as its
parameter (`w`) unless a pattern names it, and so does a gradient. `auto` cuts the
first dimension of data along the axis "dp", the second, a sequence, along "sp",
experts along "ep" and other parameters along "tp" in the groups of the planner, where
the program itself cuts nothing along these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

from pcp import outside
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.dialect.roles import LIKE_PARAMETERS, OF_PARAMETERS, parameter_of
from pcp.errors import ConfigError, nearest
from pcp.layout import Axes, Layout
from pcp.mesh import Mesh
from pcp.passes.core.functions import (
    NAME,
    ROLE,
    find,
    function_type,
    symbol_name,
)
from pcp.passes.core.rewriting import attributes, functions, operations
from pcp.passes.planning import tensor_groups
from pcp.passes.planning.tensor_groups import AXIS as TENSOR_AXIS
from pcp.passes.planning.tensor_groups import EXPERTS as EXPERT_AXIS
from pcp.passes.sharding.inline_calls import inline_calls
from pcp.passes.sharding.layout import SHARDING, from_attribute, to_attribute
from pcp.passes.sharding.ports import port_shardings, set_port_shardings

BATCH_AXIS, SEQUENCE_AXIS = "dp", "sp"
DATA_AXES = (BATCH_AXIS, SEQUENCE_AXIS)
"""The axes of data's first dimensions."""


@dataclass(frozen=True)
class Rules:
    """Patterns and what they say, in order."""

    tensors: dict[str, tuple[tuple[str, ...], ...]]
    source: str

    @classmethod
    def read(cls, path: Path) -> "Rules":
        """Read a file; raises `ConfigError` with the path and what is wrong."""
        content = outside.read_object(
            path, "the shardings", object_pairs_hook=partial(_once, path)
        )
        tensors = content.get("tensors")
        if set(content) != {"tensors"} or not isinstance(tensors, dict):
            raise ConfigError(
                f'{path}: a sharding file is {{"tensors": {{pattern: [axes of each '
                f"dimension]}}}}, not {', '.join(content)}"
            )
        return cls(
            {pattern: _axes(path, pattern, dims) for pattern, dims in tensors.items()},
            str(path),
        )

    @classmethod
    def grouped(
        cls, module: ir.Module, mesh: Mesh, entry: str, axes: Sequence[str]
    ) -> "Rules":
        """Each parameter of @entry along these axes, by the planner's groups."""
        whole = ir.Module.parse(str(module.operation), module.context)
        inline_calls(whole)
        forward = find(whole, entry)
        cut: dict[str, Layout] = {}
        for axis in axes if forward else ():
            found = tensor_groups.find(forward, mesh.axes[axis])
            groups = [g for g in found if g.experts or axis != EXPERT_AXIS]
            groups = [g for g in groups if cut.keys().isdisjoint(g.cut)]
            for i in tensor_groups.together(groups, tensor_groups.ranked(groups)):
                for name, dim in groups[i].cut.items():
                    cut[name] = Layout(((),) * dim + ((axis,),))
        tensors = {escape(name): layout.dims for name, layout in cut.items()}
        return cls(tensors, f"--mesh {mesh.axes}")

    def find(self, name: str) -> tuple[tuple[str, ...], ...] | None:
        """What the first fitting pattern says."""
        for pattern, dims in self.tensors.items():
            if fnmatchcase(name, pattern):
                return dims
        return None

    def layout(self, name: str, role: str, shape: Sequence[int]) -> Layout | None:
        """The layout of a tensor, or None where nothing is said, or it has no name."""
        dims = self.find(name) if name else None
        if dims is None and role in OF_PARAMETERS:
            dims = self.find(parameter_of(name))
        if dims is None:
            return None
        if len(dims) > len(shape):
            raise ConfigError(
                f"{self.source}: {name} has rank {len(shape)}, and {len(dims)} "
                "dimensions are given for it"
            )
        return Layout(dims + ((),) * (len(shape) - len(dims)))


def _once(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are there once: JSON itself keeps the last, silently."""
    keys = [key for key, _ in pairs]
    if twice := {key for key in keys if keys.count(key) > 1}:
        named = ", ".join(sorted(twice))
        raise ConfigError(f"{path}: {named}: said twice; keep one of them")
    return dict(pairs)


def _axes(path: Path, pattern: str, dims: object) -> tuple[tuple[str, ...], ...]:
    if not isinstance(dims, list) or any(not isinstance(d, list | str) for d in dims):
        raise ConfigError(
            f'{path}: {pattern}: give a list of axes for each dimension, as [["dp"]]'
        )
    return tuple((d,) if isinstance(d, str) else tuple(d) for d in dims)


def annotate(
    module: ir.Module, mesh: Mesh, sharding: str | None, entry: str = "main"
) -> int:
    """Write `pcp.sharding` on the ports that nobody annotated; how many have one.

    `entry` is the forward function.
    """
    rules, automatic = read_rules(mesh, sharding), sharding in (None, "auto")
    if rules is not None:
        _check_names(rules, module)
    elif automatic:
        free = set(idle_axes(module, mesh))
        axes = [axis for axis in (EXPERT_AXIS, TENSOR_AXIS) if axis in free]
        rules = Rules.grouped(module, mesh, entry, axes) if axes else None
    data = [(a,) if a in mesh.axes else () for a in DATA_AXES if automatic]
    count = 0
    for function in functions(module):
        for which in ("arg_attrs", "res_attrs"):
            count += _ports(function, which, mesh, rules, data)
    return count


def read_rules(mesh: Mesh, sharding: str | None) -> Rules | None:
    """What a file says, if one was given: all axes that it names are of the mesh."""
    if sharding in (None, "auto", "none"):
        return None
    rules = Rules.read(Path(str(sharding)))
    _check(rules, mesh)
    return rules


def idle(module: ir.Module, mesh: Mesh, besides: str) -> list[str]:
    """What is odd in a propagated program: axes along which members do equal work.

    `besides` is an axis that cuts the program, not its tensors.
    """
    return [
        f'axis "{axis}" cuts no tensor: its {mesh.axes[axis]} members do the same '
        "work; say what it cuts with --sharding FILE, leave it out, or take "
        "--sharding none"
        for axis in idle_axes(module, mesh)
        if axis != besides
    ]


def idle_axes(module: ir.Module, mesh: Mesh) -> list[str]:
    """The axes of several members that no layout in the program names."""
    said: set[ir.Attribute] = set()
    for function in functions(module):
        type_ = function_type(function)
        for which, types in (("arg_attrs", type_.inputs), ("res_attrs", type_.results)):
            said.update(filter(None, port_shardings(function, which, len(types))))
        for op in operations(function):
            if op.name.startswith("pcp."):  # constraints, collectives
                said.update(attributes(op).values())
            elif SHARDING in op.attributes:
                said.add(op.attributes[SHARDING])
    texts = [str(attribute) for attribute in said]
    return [
        axis
        for axis, size in mesh.axes.items()
        if size > 1 and not any(f'"{axis}"' in text for text in texts)
    ]


def _check(rules: Rules, mesh: Mesh) -> None:
    """Every axis that the file names is one of the mesh, and cuts a tensor once."""
    for pattern, dims in rules.tensors.items():
        axes = [axis for dim in dims for axis in dim]
        for axis in axes:
            if axes.count(axis) > 1:
                raise ConfigError(
                    f'{rules.source}: {pattern}: axis "{axis}" is given twice; it can '
                    "cut one dimension"
                )
            if axis not in mesh.axes:
                raise ConfigError(
                    f'{rules.source}: {pattern}: axis "{axis}" is not of the mesh '
                    f"({', '.join(mesh.axes)}).{nearest(axis, mesh.axes)}"
                )


def _check_names(rules: Rules, module: ir.Module) -> None:
    """A name without wildcards is one of the program's; a pattern may fit nothing."""
    names: set[str] = set()
    for function in functions(module):
        type_ = function_type(function)
        for which, types in (("arg_attrs", type_.inputs), ("res_attrs", type_.results)):
            names.update(name for name, _ in _facts(function, which, len(types)))
    names.discard("")
    known = names | {name.partition(".")[2] for name in names}
    for pattern in rules.tensors:
        if not set("*?[") & set(pattern) and pattern not in known:
            raise ConfigError(
                f"{rules.source}: the program has no tensor {pattern}."
                + (
                    nearest(pattern, known)
                    or f" It has {', '.join(sorted(names)[:8])}, .."
                )
            )


def _ports(
    function: ir.Operation,
    which: str,
    mesh: Mesh,
    rules: Rules | None,
    data: Sequence[Axes],
) -> int:
    type_ = function_type(function)
    types = list(type_.inputs if which == "arg_attrs" else type_.results)
    if not types:
        return 0
    given = port_shardings(function, which, len(types))
    facts = _facts(function, which, len(types))
    new: list[ir.Attribute | None] = []
    for port, old, (name, role) in zip(types, given, facts, strict=True):
        layout = None
        shape = tuple(ir.RankedTensorType(port).shape)
        if rules is not None:
            layout = rules.layout(name, role, shape)
        cut = data[: len(shape)]
        if layout is None and any(cut) and role == "data" and which == "arg_attrs":
            layout = Layout((*cut, *((),) * (len(shape) - len(cut))))
        if layout is None and role in LIKE_PARAMETERS:
            layout = Layout.replicated(len(shape))  # alike in every function
        wanted = None if layout is None else to_attribute(layout, mesh.name)
        if old is not None and layout and rules is not None and name in rules.tensors:
            _check_agrees(rules, name, layout, old, function)
        new.append(old if old is not None else wanted)
    set_port_shardings(function, which, new)
    return sum(1 for attribute in new if attribute is not None)


def _check_agrees(
    rules: Rules,
    name: str,
    layout: Layout,
    old: ir.Attribute,
    function: ir.Operation,
) -> None:
    """What the file says of a tensor by its name, the program may not say otherwise.

    A pattern that happens to fit gives way to the program.
    """
    if (said := from_attribute(old)) != layout:
        raise ConfigError(
            f"{rules.source}: {name} is to lie {layout}, and the program says {said} "
            f"({location_string(function.location)}: @{symbol_name(function)}); take "
            "one of them out"
        )


def _facts(function: ir.Operation, which: str, count: int) -> list[tuple[str, str]]:
    """(name, role) of each port; both may be empty."""
    if which not in function.attributes:
        return [("", "")] * count
    return [
        (_said(entry, NAME), _said(entry, ROLE))
        for entry in map(ir.DictAttr, ir.ArrayAttr(function.attributes[which]))
    ]


def _said(entry: ir.DictAttr, key: str) -> str:
    return ir.StringAttr(entry[key]).value if key in entry else ""
