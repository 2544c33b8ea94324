"""Lowered programs become a bundle: each device's passes, IREE, the manifest.

Program ─► a build for each target, or for each device of the mesh ─► iree ─► Bundle
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pcp.bundle import Bundle, DeviceProgram, Manifest, Module
from pcp.compiler import memory, pipelines, signature
from pcp.compiler.emission import Binary, copy, emit_all
from pcp.compiler.mesh_targets import targets_of
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import Target, find
from pcp.dialect.bindings import ir
from pcp.errors import DoesNotFit
from pcp.mesh import Mesh
from pcp.passes.core.base import Observer
from pcp.passes.core.rewriting import device_modules


@dataclass(frozen=True)
class Program:
    """The IR between the passes and the target compilers.

    `source` is the text after import, `whole` the program that `manifest` describes.
    `module` is what the passes left: over a `mesh` with a module for each device,
    which the device's own passes have not seen yet; without, one device's program.
    """

    source: str
    whole: ir.Module
    module: ir.Module
    manifest: Manifest
    mesh: Mesh | None = None


@dataclass(frozen=True)
class Build:
    """A module to compile. `key` is its name in the manifest, `file` in the bundle."""

    key: str
    file: str
    module: ir.Module
    target: Target

    def described(self, straight: tuple[str, ...]) -> Module:
        """What the manifest says of the compiled module."""
        return Module(
            straight=straight,
            file=self.file,
            target=self.target.name,
            backend=self.target.backend,
            driver=self.target.driver,
        )


def bundled(program: Program, options: CompileOptions) -> Bundle:
    """Compile a program for each target, or each device's for its own."""
    builds = list(builds_of(program, options))
    compiled = emit_all([(build.module, build.target) for build in builds], options)
    members = {
        "ir/source.mlir": program.source.encode(),
        "ir/program.mlir": str(program.module).encode(),
    }
    keys = _keys(builds, compiled, shared=program.mesh is not None)
    modules: dict[str, Module] = {}
    for build, key, binary in zip(builds, keys, compiled, strict=True):
        if key == build.key:
            members[build.file] = binary.content
            modules[key] = build.described(binary.straight)
    changes: dict[str, object] = {"modules": modules}
    if program.mesh is not None:
        changes["programs"] = {
            build.key: _device_program(build, key, program)
            for build, key in zip(builds, keys, strict=True)
        }
    return Bundle.build(program.manifest.model_copy(update=changes), members)


def builds_of(program: Program, options: CompileOptions) -> Iterator[Build]:
    """Each module that is to be compiled, for its target."""
    if program.mesh is None:
        for target in map(find, dict.fromkeys(options.target_names)):
            file = f"modules/{target.file_name}.vmfb"
            yield Build(target.name, file, program.module, target)
        return
    devices = program.mesh.devices
    targets = targets_of(program.whole, program.mesh, options)
    lowered: dict[str, ir.Module] = {}  # by what it was before: equal ones once
    for device, target in zip(devices, targets, strict=True):
        home = standalone(program.module, device)
        text = home.operation.get_asm(enable_debug_info=True)
        if text not in lowered:
            lower_device(home, program.manifest.mode, options)
            lowered[text] = home
        yield Build(device, f"modules/{device}.vmfb", lowered[text], target)


def lower_device(
    module: ir.Module,
    mode: str,
    options: CompileOptions,
    observers: Iterable[Observer] = (),
) -> None:
    """Run the passes on one device's program; raises `DoesNotFit`, see `memory`."""
    memory.check(module, mode, options)
    remat = memory.remat(module, mode, options)
    held = memory.beside(module, mode, options) if remat else 0
    try:
        pipelines.device(mode, remat=remat).run(module, observers)
    except DoesNotFit as error:
        raise memory.explained(error, held, options) from None
    if remat:
        options.report(memory.outcome(module, held, options))


def _keys(
    builds: Sequence[Build], compiled: Sequence[Binary], *, shared: bool
) -> list[str]:
    """Whose module each build runs: devices share what is equal."""
    if not shared:
        return [build.key for build in builds]
    first: dict[bytes, str] = {}
    pairs = zip(builds, compiled, strict=True)
    return [first.setdefault(binary.content, build.key) for build, binary in pairs]


def _device_program(build: Build, key: str, program: Program) -> DeviceProgram:
    manifest, mesh = program.manifest, program.mesh
    functions = signature.functions(build.module, manifest.entry, manifest.mode)
    if (whole := manifest.functions.get("init")) is not None and whole.first:
        assert mesh is not None
        place = mesh.members[mesh.devices.index(build.key)]
        own = signature.first_values_of(whole, functions, mesh, place)
        functions = functions | {"init": own}
    return DeviceProgram(
        module=key,
        functions=functions,
        collectives=signature.collectives(build.module),
    )


def standalone(module: ir.Module, device: str) -> ir.Module:
    """One device's program as a module of its own, with the mesh."""
    alone = copy(module)
    homes = device_modules(alone)
    for inner in list(homes[device].regions[0].blocks[0].operations):
        inner.operation.move_before(homes[device])
    for home in homes.values():
        home.erase()
    return alone
