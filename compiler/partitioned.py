"""A model and a mesh become a bundle with one program for each device.

    copy ─► prepare ─► gradient, optimizer ─► annotate ─► propagate, reshard, partition
                                                                │ per device
                                     Bundle ◄─ iree, equal ones once ◄─ legalize, lower

What the bundle says of functions is the whole program's signature, with shardings;
`programs` says what each device runs on its parts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pcp.bundle import Bundle, DeviceProgram, Manifest, Module
from pcp.compiler import cluster as cluster_file
from pcp.compiler import pipelines, sharding_file, signature
from pcp.compiler.asked import check_planned, check_unstaged
from pcp.compiler.emission import copy, emit_all
from pcp.compiler.mesh_targets import describe_unlike
from pcp.compiler.options import DEFAULT_SCHEDULE, CompileOptions
from pcp.compiler.placing import PIPELINE, place, tell_idle
from pcp.compiler.sources import with_source
from pcp.compiler.targets import Target
from pcp.dialect.bindings import ir
from pcp.errors import ConfigError
from pcp.mesh import Mesh
from pcp.passes.collectives.overlap_collectives import usual_inflight
from pcp.passes.core.base import Pipeline
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import device_modules, functions
from pcp.passes.pipeline.names import name_results
from pcp.passes.planning import plan
from pcp.passes.planning.candidates import Candidate
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.zero import unshared

MESH = "mesh"


def is_wanted(module: ir.Module, options: CompileOptions) -> bool:
    """Whether the model is to be spread: by an option, or by a mesh of its own."""
    if options.mesh or options.cluster or options.split:
        return True
    return any(
        op.operation.name == "pcp.mesh" and "-1" not in str(op.attributes["axes"])
        for op in module.body.operations
    )


def parse_mesh(text: str) -> dict[str, int]:
    """`dp=4,tp=2` as axes and sizes, or `ConfigError`."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)=(\d+)\s*", part)
        if match is None or int(match[2]) < 1:
            raise ConfigError(
                f"--mesh {text}: {part.strip()!r} is not axis=size; write it as "
                "dp=4,tp=2"
            )
        if match[1] in axes:
            raise ConfigError(f'--mesh {text}: axis "{match[1]}" is given twice')
        axes[match[1]] = int(match[2])
    return axes


def parse_split(text: str, mesh: Mesh) -> str:
    """`dp=5,2,1` as the attribute of a mesh, or `ConfigError`: a share per member."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)=(\d+(?:,\d+)*)\s*", text)
    if match is None:
        raise ConfigError(f"--split {text}: write it as axis=share,share: dp=5,2,1")
    axis, shares = match[1], [int(share) for share in match[2].split(",")]
    if axis not in mesh.axes:
        known = ", ".join(mesh.axes)
        raise ConfigError(f'--split {text}: the mesh has no axis "{axis}" ({known})')
    if len(shares) != mesh.axes[axis]:
        raise ConfigError(
            f"--split {text}: {len(shares)} shares for the {mesh.axes[axis]} members "
            f'of axis "{axis}"; give one for each'
        )
    if not sum(shares):
        raise ConfigError(f"--split {text}: some member has to have a share")
    return f'#pcp.split<"{axis}", {shares}>'


# --- the mesh and its devices ---


def describe(module: ir.Module, options: CompileOptions) -> Mesh | None:
    """Put the cluster and the mesh into the module; None where one is to be chosen."""
    if options.cluster:
        _add_cluster(module, options)
    if options.mesh:
        _add_mesh(module, parse_mesh(options.mesh), options)
    elif options.cluster and not read_meshes(module):
        check_planned(options)
        return None
    meshes = read_meshes(module)
    if len(meshes) != 1:
        found = ", ".join(f"@{name}" for name in meshes) or "none"
        raise ConfigError(
            f"{options.source}: a model is spread over exactly one mesh, and there is "
            f"{found}; say one with --mesh dp=4,tp=2"
        )
    mesh = next(iter(meshes.values()))
    describe_unlike(module, mesh, options)
    if options.split:
        _add_split(module, mesh, options.split)
    return read_meshes(module)[mesh.name]


def choices(
    module: ir.Module,
    mode: str,
    optimizer: str,
    options: CompileOptions,
    *,
    zero: int = 3,
    axes: dict[str, int] | None = None,
    keep: int = 0,
) -> plan.Choice:
    """The plans for the cluster, the fastest first; `module` is changed."""
    if describe(module, options) is not None:
        raise ConfigError(
            f"{options.source}: the model or the cluster file has a pcp.mesh, which "
            "is a plan already; leave it out to have one chosen"
        )
    pipelines.whole(mode, entry=options.entry, optimizer=optimizer).run(module)
    with module.context:
        search = plan.Search.of(module, options.entry, zero, axes, options.tied)
        return _sourced(search.run(keep), options)


def _choose(module: ir.Module, options: CompileOptions) -> tuple[Mesh, CompileOptions]:
    """Have the mesh and all layouts chosen for the cluster; says what was weighed."""
    with module.context:
        search = plan.Search.of(module, options.entry, tied=options.tied)
        choice = _sourced(search.run(), options)
        plan.write(module, choice)
    for line in choice.lines():
        options.report(line)
    planned = as_planned(options, choice.best.candidate)
    return next(iter(read_meshes(module).values())), planned


def as_planned(options: CompileOptions, taken: Candidate) -> CompileOptions:
    """The options with what the plan taken says; it is compiled as it was judged.

    Nothing else tells how many collectives are under way: the layouts say which ZeRO
    stage it is, and `options.zero` is not asked for beside a plan.
    """
    if options.inflight is None:
        options = replace(options, inflight=usual_inflight(taken.zero))
    if taken.pp > 1:
        flow = {"microbatches": taken.microbatches, "schedule": taken.schedule}
        options = replace(options, **flow)
    return options


def _sourced(choice: plan.Choice, options: CompileOptions) -> plan.Choice:
    """Where stages are impossible names the model's file, not text in memory."""
    why = [
        (name, with_source(text, options.source)) for name, text in choice.impossible
    ]
    return replace(choice, impossible=tuple(why))


def _add_cluster(module: ir.Module, options: CompileOptions) -> None:
    """The targets, devices and links that a cluster file describes."""
    cluster = cluster_file.read_ops(Path(str(options.cluster)), module.context)
    with ir.InsertionPoint.at_block_begin(module.body):
        for view in cluster.body.operations:
            if view.operation.name.startswith("pcp."):
                view.operation.clone()


def _devices(module: ir.Module) -> list[str]:
    return [
        symbol_name(op)
        for op in module.body.operations
        if op.operation.name == "pcp.device"
    ]


def _add_mesh(module: ir.Module, axes: dict[str, int], options: CompileOptions) -> None:
    """`@mesh` over the described devices in order, or over unnamed ones."""
    count = Mesh(MESH, axes).size
    devices = _devices(module)
    if devices and len(devices) < count:
        raise ConfigError(
            f"--mesh {options.mesh} has {count} places, and the cluster "
            f"{len(devices)} devices ({', '.join(devices)})"
        )
    tell_idle(devices[count:], options.report)
    named = ", ".join(f'#pcp.axis<"{axis}", {n}>' for axis, n in axes.items())
    listed = ", ".join(f"@{device}" for device in devices[:count])
    for view in list(module.body.operations):
        if view.operation.name == "pcp.mesh":
            view.operation.erase()
    facts = f'axes = [{named}], devices = [{listed}], sym_name = "{MESH}"'
    text = f'"pcp.mesh"() {{{facts}}} : () -> ()'
    with module.context, ir.Location.unknown():
        op = ir.Operation.parse(text)
        ir.InsertionPoint.at_block_begin(module.body).insert(op)


def _add_split(module: ir.Module, mesh: Mesh, text: str) -> None:
    """Write the shares of one axis on the mesh, in place of its own."""
    split = ir.Attribute.parse(parse_split(text, mesh), module.context)
    for view in module.body.operations:
        if view.operation.name == "pcp.mesh":
            view.operation.attributes["split"] = split


# --- compiling ---


@dataclass(frozen=True)
class Partitioned:
    """The program before and after the partition."""

    source: str
    whole: ir.Module
    module: ir.Module
    mesh: Mesh
    manifest: Manifest


def lower(
    module: ir.Module, mode: str, optimizer: str, options: CompileOptions, observers=()
) -> Partitioned:
    """Passes on the whole, annotation, partition; `module` is changed."""
    mesh = describe(module, options)
    if mesh is not None and PIPELINE not in mesh.axes:
        check_unstaged(options)
    source = str(module)
    pipelines.whole(mode, entry=options.entry, optimizer=optimizer).run(
        module, observers
    )
    if mesh is None:
        mesh, options = _choose(module, options)
    split = _split(module, mesh, mode, options, observers)
    mesh = read_meshes(module)[mesh.name]
    whole = copy(module)
    manifest = Manifest(
        mode=mode,  # type: ignore[arg-type]
        entry=options.entry,
        functions=signature.functions(whole, options.entry, mode),
        parameters=signature.parameters(whole, options.entry),
        mesh=_meshes(whole, mesh),
        devices=mesh.devices,
    )
    split.run(module, observers)
    return Partitioned(source, whole, module, mesh, manifest)


def _split(
    module: ir.Module, mesh: Mesh, mode: str, options: CompileOptions, observers
) -> Pipeline:
    """Annotate the whole program; the passes that make each device's of it."""
    if PIPELINE in mesh.axes:
        _check_stages(mesh, options)
        for function in functions(module):
            name_results(function)
    if set(mesh.axes) != {PIPELINE}:
        _annotate(module, mesh, options, observers)
    if PIPELINE in mesh.axes:
        return pipelines.stages(
            microbatches=options.microbatches or mesh.axes[PIPELINE],
            schedule=options.schedule or DEFAULT_SCHEDULE,
            tied=options.tied,
            shared_loss=mode == "train",
            communication=_communication(options),
        )
    return pipelines.split(_communication(options))


def _annotate(
    module: ir.Module, mesh: Mesh, options: CompileOptions, observers
) -> None:
    """Say on every port how its tensor lies, and of unequal devices who has which."""
    with module.context:
        sharding_file.annotate(module, mesh, options.sharding)
        if options.mesh and options.cluster and not options.split:
            place(module, mesh, options.entry, options.report)
    if options.zero:
        pipelines.zero(options.zero).run(module, observers)
    if axes := unshared(module):
        pipelines.share_updates().run(module, observers)
        options.report(
            f"members along {', '.join(axes)} compile for unlike targets, which round "
            "differently: each updates its share, as with --zero 2"
        )
    pipelines.split().steps[0].run(module)
    for line in sharding_file.idle(module, mesh, besides=PIPELINE):
        options.report(line)


def under_way(options: CompileOptions) -> int:
    """How many collectives may be under way: what was said, or what is usual."""
    if options.inflight is None:
        return usual_inflight(options.zero)
    return options.inflight


def _communication(options: CompileOptions) -> list[str]:
    return pipelines.communication(
        bucket_bytes=options.bucket_bytes,
        inflight=under_way(options),
        wire=options.wire,
    )


def _check_stages(mesh: Mesh, options: CompileOptions) -> None:
    """Stages are cut along axes of their own: `ConfigError` without them."""
    sharded = options.sharding not in (None, "auto", "none")
    if set(mesh.axes) == {PIPELINE} and (options.zero or sharded):
        raise ConfigError(
            f"{options.source}: over mesh axis {PIPELINE} alone a stage is whole; "
            f"leave --zero and --sharding out, or add an axis: --mesh {PIPELINE}=2,dp=2"
        )


def _meshes(module: ir.Module, mesh: Mesh):
    """The manifest's meshes; unnamed devices get their names."""
    found = signature.meshes(module)
    own = found[mesh.name].model_copy(update={"devices": mesh.devices})
    return found | {mesh.name: own}


def emit(
    program: Partitioned, targets: Sequence[Target], mode: str, options: CompileOptions
) -> Bundle:
    """Compile every device's program; one module for those that are equal."""
    homes = [_standalone(program.module, device) for device in program.mesh.devices]
    for home in homes:
        pipelines.device(mode).run(home)
    compiled = emit_all(list(zip(homes, targets, strict=True)), options)
    members = {
        "ir/source.mlir": program.source.encode(),
        "ir/program.mlir": str(program.module).encode(),
    }
    files: dict[bytes, str] = {}
    modules: dict[str, Module] = {}
    programs: dict[str, DeviceProgram] = {}
    for device, home, target, content in zip(
        program.mesh.devices, homes, targets, compiled, strict=True
    ):
        if content not in files:
            files[content] = device
            members[f"modules/{device}.vmfb"] = content
            modules[device] = Module(
                file=f"modules/{device}.vmfb",
                target=target.name,
                backend=target.backend,
                driver=target.driver,
            )
        programs[device] = DeviceProgram(
            module=files[content],
            functions=signature.functions(home, options.entry, mode),
            collectives=signature.collectives(home),
        )
    changes = {"modules": modules, "programs": programs}
    return Bundle.build(program.manifest.model_copy(update=changes), members)


def _standalone(module: ir.Module, device: str) -> ir.Module:
    """One device's program as a module of its own, with the mesh."""
    alone = copy(module)
    homes = device_modules(alone)
    for inner in list(homes[device].regions[0].blocks[0].operations):
        inner.operation.move_before(homes[device])
    for home in homes.values():
        home.erase()
    return alone
