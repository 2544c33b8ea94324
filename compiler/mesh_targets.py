"""What each member of a mesh is compiled for."""

from collections.abc import Sequence

from pcp.compiler import cluster
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import Target, find
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import ConfigError, nearest
from pcp.mesh import Mesh
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import refuse


def targets_of(module: ir.Module, mesh: Mesh, options: CompileOptions) -> list[Target]:
    """Each device's compile target: its own, or the one asked for."""
    described = _described(module)
    if any(device in described for device in mesh.devices):
        return [_target_of(described, device) for device in mesh.devices]
    asked = [find(name) for name in options.target_names]
    if len(asked) == mesh.size:
        return asked
    if len(set(asked)) > 1:
        raise ConfigError(
            f"{len(asked)} targets for {mesh.size} devices; give one for all of them, "
            "one for each, or describe the devices with --cluster"
        )
    return asked[:1] * mesh.size


def describe_unlike(module: ir.Module, mesh: Mesh, options: CompileOptions) -> None:
    """Say in the module what unnamed devices run, where that is not the same for all.

    Passes tell by it which members round differently.
    """
    if any(device in _described(module) for device in mesh.devices):
        return
    targets = targets_of(module, mesh, options)
    names = dict.fromkeys(target.name for target in targets)
    if len(names) == 1:
        return
    lines = [cluster.target_op(name) for name in names]
    lines += [
        f'"pcp.device"() {{sym_name = "{device}", '
        f'target = @"{cluster.target_symbol(target.name)}"}} : () -> ()'
        for device, target in zip(mesh.devices, targets, strict=True)
    ]
    _insert(module, lines)
    for view in module.body.operations:
        if view.operation.name == "pcp.mesh" and symbol_name(view) == mesh.name:
            listed = [ir.FlatSymbolRefAttr.get(d, module.context) for d in mesh.devices]
            view.operation.attributes["devices"] = ir.ArrayAttr.get(
                listed, module.context
            )


def _insert(module: ir.Module, lines: Sequence[str]) -> None:
    made = parse("\n".join(lines), module.context, source="--target")
    with ir.InsertionPoint.at_block_begin(module.body):
        for view in made.body.operations:
            view.operation.clone()


def _described(module: ir.Module) -> dict[str, ir.Operation]:
    """Devices and targets by name."""
    return {
        symbol_name(op): op.operation
        for op in module.body.operations
        if op.operation.name in ("pcp.device", "pcp.target")
    }


def _target_of(described: dict[str, ir.Operation], device: str) -> Target:
    name = ir.FlatSymbolRefAttr(described[device].attributes["target"]).value
    if name not in described or described[name].name != "pcp.target":
        known = [n for n, op in described.items() if op.name == "pcp.target"]
        refuse(
            described[device],
            f"@{device} is to be compiled for @{name}, and there is no such pcp.target "
            f"(there is {', '.join(known) or 'none'}).{nearest(name, known)}",
        )
    arch = ir.StringAttr(described[name].attributes["arch"]).value
    families = {"x86_64": "cpu", "arm64": "aarch64"}
    return find(families.get(arch, arch))
