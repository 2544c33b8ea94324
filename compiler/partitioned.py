"""Where a program is to run, and the partition of one that is spread.

    describe the mesh ─► annotate ─► propagate, reshard, partition ─► module @<device>

`describe` puts the mesh that was asked for into the module, with the cluster; `choose`
has one chosen for the cluster. `partition` makes a program for each device of it. What
the bundle says of functions is the whole program's signature, with shardings;
`programs` says what each device runs on its parts.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pcp.compiler import asked, pipelines, sharding_file
from pcp.compiler import cluster as cluster_file
from pcp.compiler.mesh_option import AskedMesh, parse_mesh, parse_split
from pcp.compiler.mesh_targets import describe_unlike
from pcp.compiler.options import DEFAULT_SCHEDULE, CompileOptions
from pcp.compiler.placing import PIPELINE, place, tell_idle
from pcp.compiler.sources import with_source
from pcp.dialect.bindings import ir
from pcp.errors import ConfigError, nearest
from pcp.mesh import Mesh
from pcp.passes.collectives.overlap_collectives import usual_inflight
from pcp.passes.core.base import Observer, Pipeline
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import functions
from pcp.passes.pipeline.names import name_results
from pcp.passes.pipeline.wiring import devices_of, schedules
from pcp.passes.planning import plan
from pcp.passes.planning.candidates import Candidate
from pcp.passes.sharding.mesh import is_elastic, read_meshes
from pcp.passes.sharding.zero import unshared

MESH = "mesh"


def is_wanted(module: ir.Module, options: CompileOptions) -> bool:
    """Whether the model is to be spread: by an option, or by a mesh of its own.

    A mesh of one device that nothing else is said of spreads nothing, unless islands
    of more devices are to exchange with it.
    """
    own = any(
        op.operation.name == "pcp.mesh" and "-1" not in str(op.attributes["axes"])
        for op in module.body.operations
    )
    if options.cluster or own or options.unlike:
        return True
    if options.mesh and (asked_for := parse_mesh(options.mesh)).size == 1:
        _check_alone(asked_for, options)
        return False
    return bool(options.mesh or options.split)


def _check_alone(found: AskedMesh, options: CompileOptions) -> None:
    """What is said of a mesh of one device has to be right, though it cuts nothing."""
    if not found.axes:
        return
    mesh = Mesh(MESH, found.axes)
    if options.split:
        parse_split(options.split, mesh)
    check_stages(mesh, options)
    sharding_file.read_rules(mesh, options.sharding)


# --- the mesh and its devices ---


def describe(module: ir.Module, options: CompileOptions) -> Mesh | None:
    """Put the cluster and the mesh into the module; None where one is to be chosen."""
    if options.cluster:
        _add_cluster(module, options)
    if options.mesh:
        _add_mesh(module, _axes(options), options)
    elif (used := scheduled_on(module)) and not read_meshes(module):
        _add_mesh(module, {PIPELINE: len(used)}, options, _known(module, used))
    elif options.cluster and not read_meshes(module):
        asked.PLANNED.check(options)
        return None
    meshes = read_meshes(module)
    if len(meshes) != 1:
        found = ", ".join(f"@{name}" for name in meshes) or "none"
        raise ConfigError(
            f"{options.source}: a model is spread over exactly one mesh, and there is "
            f"{found}; say one with --mesh dp=4,tp=2"
        )
    mesh = next(iter(meshes.values()))
    check_stages(mesh, options)
    describe_unlike(module, mesh, options)
    if options.split:
        _add_split(module, mesh, options.split)
    return read_meshes(module)[mesh.name]


def choices(
    module: ir.Module,
    front: Pipeline,
    options: CompileOptions,
    *,
    zero: int = 3,
    axes: dict[str, int] | None = None,
    keep: int = 0,
    islands: bool = False,
) -> plan.Choice:
    """The plans for the cluster, the fastest first; `module` is changed.

    `front` are the passes on the whole program. For `islands` see `plan.Search`.
    """
    # An island's algorithm joins it to the others: the plan does not decide it.
    described = replace(options, algorithm=None) if islands else options
    if describe(module, described) is not None:
        raise ConfigError(
            f"{options.source}: the model or the cluster file has a pcp.mesh, which "
            "is a plan already; leave it out to have one chosen"
        )
    if islands:  # what joins them is written for a program that is spread
        _add_mesh(module, {"dp": 1}, options, _devices(module)[:1])
    front.run(module)
    with module.context:
        for op in [view.operation for view in module.body.operations]:
            if op.name == "pcp.mesh" and not is_elastic(op):
                op.erase()
        search = plan.Search.of(
            module, options.entry, zero, axes, options.tied, islands
        )
        return _sourced(search.run(keep), options)


def choose(module: ir.Module, options: CompileOptions) -> tuple[Mesh, CompileOptions]:
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


def _axes(options: CompileOptions) -> dict[str, int]:
    """The axes that a program is spread over; there has to be one."""
    if axes := parse_mesh(str(options.mesh)).axes:
        return axes
    raise ConfigError(
        f"--mesh {options.mesh}: workers each run the whole program, and here it is to "
        "be spread; say over what, --mesh workers=elastic,tp=2"
    )


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


def scheduled_on(module: ir.Module) -> list[str]:
    """The devices that the model's own `pcp.schedule`s are for; none without one."""
    found = [
        schedule for function in functions(module) for schedule in schedules(function)
    ]
    return sorted({device for schedule in found for device in devices_of(schedule)})


def _known(module: ir.Module, used: list[str]) -> list[str]:
    """These devices in the order of the cluster, the idle ones last."""
    there = _devices(module)
    if missing := [name for name in used if name not in there]:
        listed = ", ".join(f"@{name}" for name in there) or "none"
        raise ConfigError(
            f"the pcp.schedule has tasks on @{missing[0]}, which is no device of the "
            f"cluster ({listed}).{nearest(missing[0], there)}"
        )
    return sorted(there, key=lambda name: name not in used)


def _add_mesh(
    module: ir.Module,
    axes: dict[str, int],
    options: CompileOptions,
    devices: list[str] | None = None,
) -> None:
    """`@mesh` over the described devices in order, or over unnamed ones."""
    count = Mesh(MESH, axes).size
    devices = _devices(module) if devices is None else devices
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


# --- the partition ---


def partition(
    module: ir.Module,
    mesh: Mesh,
    mode: str,
    options: CompileOptions,
    observers: Iterable[Observer] = (),
) -> Pipeline:
    """Annotate the whole program; the passes that make each device's of it."""
    if PIPELINE in mesh.axes:
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
    split = pipelines.split(_communication(options), named=options.unlike)
    return Pipeline(split.steps[1:])  # annotated


def lower_schedule(options: CompileOptions) -> Pipeline:
    """The passes that make each device's program of a schedule."""
    return pipelines.scheduled(_communication(options))


def _annotate(
    module: ir.Module, mesh: Mesh, options: CompileOptions, observers
) -> None:
    """Say on every port how its tensor lies, and of unequal devices who has which."""
    with module.context:
        sharding_file.annotate(module, mesh, options.sharding, options.entry)
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
    Pipeline(pipelines.split().steps[:1]).run(module, observers)
    mesh = read_meshes(module)[mesh.name]  # whose axes may have been taken apart
    for line in sharding_file.idle(module, mesh, besides=PIPELINE):
        if options.mesh and options.sharding != "none":
            raise ConfigError(f"--mesh {options.mesh}: {line}")
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
        wire=options.reduced_as,
    )


def check_stages(mesh: Mesh, options: CompileOptions) -> None:
    """Stages are there for what is asked of them, and axes for what cuts them."""
    if PIPELINE not in mesh.axes:
        asked.UNSTAGED.check(options)
    else:
        asked.STAGED_SCALE.check(options)
        asked.STAGED_MEMORY.check(options)
    if set(mesh.axes) == {PIPELINE}:
        asked.STAGES_ALONE.check(options)
