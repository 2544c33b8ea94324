"""Meshes as a module describes them."""

from dataclasses import replace
from math import prod

from pcp.dialect.attributes import ELASTIC, Split, axis_sizes
from pcp.dialect.base import as_integers, symbols, text
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError, nearest
from pcp.mesh import Mesh
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import attributes, refuse

__all__ = [
    "DEVICE",
    "Mesh",
    "codes",
    "is_elastic",
    "only_mesh",
    "read_mesh",
    "read_meshes",
    "weights",
]

#: On a device's module: what its `pcp.device` said.
DEVICE = "pcp.device"


def read_mesh(op: ir.Operation) -> Mesh:
    """The mesh that a `pcp.mesh` op describes; an elastic axis is refused.

    Devices that it does not list are called `<mesh>_<number>`.
    """
    axes = axis_sizes(op.attributes["axes"])
    if elastic := [axis for axis, size in axes.items() if size == ELASTIC]:
        refuse(
            op,
            f'axis "{elastic[0]}" is elastic; a program can only be partitioned '
            "over axes of a known size",
        )
    name = symbol_name(op)
    devices = symbols(op, "devices")
    named = [f"{name}_{i}" for i in range(prod(axes.values()))]
    mesh = Mesh(name, axes, tuple(devices or named), weights(op))
    return replace(mesh, unlike=mesh.differing(codes(op.parent.operation)))


#: Drivers that compile what they are given where they load it, for what is there.
COMPILES_AT_LOAD = ("vulkan", "metal")


def codes(module: ir.Operation) -> dict[str, str]:
    """What each described device runs: its target, and where that is compiled.

    A device is described by its `pcp.device`, or by what its module keeps of that.
    """
    ops = [view.operation for view in module.regions[0].blocks[0].operations]
    targets = {symbol_name(op): op for op in ops if op.name == "pcp.target"}
    return {
        symbol_name(op): _code(facts, targets)
        for op in ops
        if "target" in (facts := _facts(op))
    }


def _facts(op: ir.Operation) -> dict[str, ir.Attribute]:
    """What is said of a device; nothing for an op that describes none."""
    if op.name == "builtin.module" and DEVICE in op.attributes:
        return {fact.name: fact.attr for fact in ir.DictAttr(op.attributes[DEVICE])}
    return attributes(op) if op.name == "pcp.device" else {}


def _code(facts: dict[str, ir.Attribute], targets: dict[str, ir.Operation]) -> str:
    name = ir.FlatSymbolRefAttr(facts["target"]).value
    if name not in targets:
        return name
    words = [text(targets[name], key) for key in ("arch", "driver")]
    if words[1] in COMPILES_AT_LOAD and "host" in facts:
        words.append(ir.StringAttr(facts["host"]).value)
    return " ".join(words)


def weights(op: ir.Operation) -> dict[str, tuple[int, ...]]:
    """In which proportion members share, for each axis that `split` names."""
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
    """The meshes of a module by name that a program can be spread over.

    One with elastic axes alone joins whole programs, or spread ones: it is left out.
    """
    return {
        mesh.name: mesh
        for op in module.body.operations
        if op.operation.name == "pcp.mesh" and not is_elastic(op.operation)
        for mesh in [read_mesh(op.operation)]
    }


def is_elastic(op: ir.Operation) -> bool:
    """Whether all axes of a `pcp.mesh` get their sizes when a group forms."""
    return set(axis_sizes(op.attributes["axes"]).values()) == {ELASTIC}


def only_mesh(module: ir.Module) -> Mesh:
    """The module's mesh; a program lies on one, whose devices are there."""
    meshes = read_meshes(module)
    elastic = [
        view.operation
        for view in module.body.operations
        if view.operation.name == "pcp.mesh" and is_elastic(view.operation)
    ]
    if not meshes and elastic:
        read_mesh(elastic[0])  # says so
    if len(meshes) != 1:
        found = ", ".join(f"@{name}" for name in meshes) or "none"
        raise PassError(
            f"{location_string(module.operation.location)}: a program is spread over "
            f"exactly one pcp.mesh; this module has {found}. Write one at its start, "
            '"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} '
            ": () -> (), or give a model without one to pcp-compile --mesh dp=2"
        )
    _check_devices(module)
    return next(iter(meshes.values()))


def _check_devices(module: ir.Module) -> None:
    """All that the only mesh lists are described."""
    ops = [view.operation for view in module.body.operations]
    (mesh,) = (op for op in ops if op.name == "pcp.mesh" and not is_elastic(op))
    known = [symbol_name(op) for op in ops if op.name == "pcp.device"]
    if missing := [name for name in symbols(mesh, "devices") if name not in known]:
        there = ", ".join(f"@{name}" for name in known) or "none"
        refuse(
            mesh,
            f"there is no pcp.device @{missing[0]} (there is {there})."
            f"{nearest(missing[0], known)}",
        )
