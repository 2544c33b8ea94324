"""A module and options become a bundle.

    copy ─► prepare ─► the passes on the whole ─► partition ─► each device's passes ─┐
                            Bundle ◄─ iree, equal programs once ◄────────────────────┘

A program for one device is not partitioned: it is its device's program.
The caller's module is not touched: the passes run on a copy in a context of its
own. Each program is compiled by a process of IREE's, several at a time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, TypeVar

from pcp.bundle import Bundle, Manifest, Method
from pcp.bundle import Mesh as BundleMesh
from pcp.compiler import asked, iree, partitioned, pipelines, signature
from pcp.compiler.attributes import plain
from pcp.compiler.bundling import Program, bundled, lower_device
from pcp.compiler.emission import copy
from pcp.compiler.mesh_option import parse_mesh
from pcp.compiler.options import (
    DEFAULT_ALGORITHM,
    DEFAULT_OPTIMIZER,
    EVERY_STEP,
    CompileOptions,
)
from pcp.compiler.sources import with_source
from pcp.compiler.targets import find
from pcp.dialect.attributes import ELASTIC
from pcp.dialect.bindings import ir
from pcp.errors import CompileError, DoesNotFit, IRError
from pcp.mesh import Mesh
from pcp.passes.core.base import Observer, Pipeline, Step
from pcp.passes.core.rewriting import operations
from pcp.passes.planning.plan import Choice
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.training.expand_training import outer_rule
from pcp.passes.training.optimizers.groups import parse as parse_optimizer
from pcp.passes.training.outer.parts import group
from pcp.passes.training.outer.spec import KINDS
from pcp.passes.training.outer.spec import parse as parse_algorithm
from pcp.training_plan import TrainingPlan
from pcp.tuning_table import TuningTable
from pcp.version import VERSION

Made = TypeVar("Made", Bundle, Program)


def compile(module: ir.Module, options: CompileOptions) -> Bundle:
    """Compile `module` for all targets; raises what `pcp.errors` names.

    With a mesh of a known size the bundle holds a program for each of its devices.
    """
    for name in options.target_names:
        find(name)  # before the slow part
    if options.tuning:
        TuningTable.read(options.tuning)
    return _within_memory(lambda chosen: _compile(module, chosen), module, options)


def _compile(module: ir.Module, options: CompileOptions) -> Bundle:
    program = _lower(module, options)
    try:
        return bundled(program, options)
    except CompileError as error:
        overlaps = options.bucket_bytes or partitioned.under_way(options)
        late = isinstance(error.__cause__, iree.LateImport)
        if program.mesh is None or not overlaps or not late:
            raise
        options.report(f"{error}; again with --bucket-bytes 0 --inflight 0")
        return _compile(module, replace(options, bucket_bytes=0, inflight=0))


# --- passes ------------------------------------------------------------------


def lower(module: ir.Module, options: CompileOptions) -> Program:
    """Run the passes on a copy of `module`, those of a mesh up to the partition."""
    return _within_memory(lambda chosen: _lower(module, chosen), module, options)


def _within_memory(
    run: Callable[[CompileOptions], Made], module: ir.Module, options: CompileOptions
) -> Made:
    """Do it, and where that holds too much do it with loops that keep less."""
    loops = any(op.name == "stablehlo.while" for op in operations(module.operation))
    try:
        return run(options)
    except DoesNotFit as error:
        if not loops:
            raise
        options.report(f"{error}: again, with loops that keep fewer states")
        try:
            return run(replace(options, checkpoints=True, keep_ir=_again(options)))
        except DoesNotFit as last:
            raise min(error, last, key=lambda e: e.least) from None


def _again(options: CompileOptions) -> Path | None:
    """Where the IR of a second attempt goes."""
    return options.keep_ir / "checkpoints" if options.keep_ir else None


def _lower(module: ir.Module, options: CompileOptions) -> Program:
    spread = partitioned.is_wanted(module, options)
    if scheduled := bool(partitioned.scheduled_on(module)):
        _check_scheduled(options, spread)
    if spread:
        asked.SPREAD.check(options)
    elif not options.mesh:
        asked.ONE_DEVICE.check(options)
    with _sourced(options):
        copied, observers = copy(module), _observers(options)
        mode = _prepare(copied, options, observers, spread)
        if scheduled:
            return _lower_scheduled(copied, mode, options, observers)
        way = _lower_spread if spread else _lower_alone
        program = way(copied, mode, options, observers)
        if mode != "train":
            return program
        rows = {"rows": signature.table_rows(module, options.entry)}
        return replace(program, manifest=program.manifest.model_copy(update=rows))


def _lower_alone(
    module: ir.Module, mode: str, options: CompileOptions, observers: list[Observer]
) -> Program:
    """One device: the whole program is its own."""
    source = str(module)
    _front(module, mode, options, spread=False).run(module, observers)
    lower_device(module, mode, options, observers)
    manifest = _manifest(module, mode, options)
    return Program(source, module, module, manifest)


def _lower_spread(
    module: ir.Module, mode: str, options: CompileOptions, observers: list[Observer]
) -> Program:
    """A mesh: the whole program is annotated, and each device gets its part."""
    front = _front(module, mode, options, spread=True)
    mesh = partitioned.describe(module, options)
    source = str(module)
    front.run(module, observers)
    if mesh is None:
        mesh, options = partitioned.choose(module, options)
    split = partitioned.partition(module, mesh, mode, options, observers)
    mesh = read_meshes(module)[mesh.name]
    whole = copy(module)
    manifest = _manifest(whole, mode, options, mesh)
    split.run(module, observers)
    return Program(source, whole, module, manifest, mesh)


def _lower_scheduled(
    module: ir.Module, mode: str, options: CompileOptions, observers: list[Observer]
) -> Program:
    """Tasks on devices, in their order, as the model has them."""
    mesh = partitioned.describe(module, options)
    assert mesh is not None  # it is of the schedule's devices
    ranks = ", ".join(mesh.devices or ())
    asked_for = f"--mesh {options.mesh}: " if options.mesh else ""
    options.report(
        f"{asked_for}ranks 0 to {mesh.size - 1} are {ranks}; which of them does what "
        "is in the model's pcp.schedule"
    )
    source, whole = str(module), copy(module)
    manifest = _manifest(whole, mode, options, mesh)
    partitioned.lower_schedule(options).run(module, observers)
    return Program(source, whole, module, manifest, mesh)


def _check_scheduled(options: CompileOptions, spread: bool) -> None:
    asked.SCHEDULED.check(options)
    if options.mode not in (None, "forward"):
        raise CompileError(
            f"{options.source}: mode {options.mode}: the model's pcp.schedule has all "
            "that is done, and no derivative is taken of it; leave --mode out"
        )
    if not spread:
        raise CompileError(
            f"{options.source}: the model has a pcp.schedule; say which devices run "
            "it, --cluster FILE"
        )


def plan(module: ir.Module, options: CompileOptions, **wanted: Any) -> Choice:
    """What `pcp-plan` makes of a model and `options.cluster`; see `Search`.

    `wanted` are options of the search: the last ZeRO stage, axes, how many to judge.
    """
    with _sourced(options):
        copied = copy(module)
        mode = _prepare(copied, options, [], spread=True)
        front = _front(copied, mode, options, spread=True)
        return partitioned.choices(copied, front, options, **wanted)


def _prepare(
    module: ir.Module,
    options: CompileOptions,
    observers: list[Observer],
    spread: bool,
) -> str:
    """Run the passes in front of a mode's own; the mode."""
    mode = choose_mode(module, options)
    entry = signature.entry_function(module, options.entry)
    marks = spread or mode == "grad"
    infer = mode == "train" or (marks and signature.has_parameters(entry))
    training = mode != "forward"
    if mode != "train":
        signature.drop_evaluation(module, options.entry)
    pipelines.prepare(infer_roles=infer, training=training).run(module, observers)
    return mode


@contextmanager
def _sourced(options: CompileOptions) -> Iterator[None]:
    """Errors inside name the model's file."""
    try:
        yield
    except IRError as error:
        message = with_source(str(error), options.source)
        if message == str(error):
            raise
        error.args = (message,)
        raise
    except CompileError as error:
        raise CompileError(with_source(str(error), options.source)) from error


def _observers(options: CompileOptions) -> list[Observer]:
    return [_Keep(options.keep_ir)] if options.keep_ir else []


def choose_mode(module: ir.Module, options: CompileOptions) -> str:
    """The mode asked for, or train where that is possible; reports why."""
    if options.mode is not None:
        return options.mode
    entry = signature.entry_function(module, options.entry)
    name = f"@{options.entry}"
    if partitioned.scheduled_on(module):
        mode, why = "forward", "the model has a pcp.schedule"
    elif not signature.scalar_loss(entry):
        mode, why = "forward", f"{name} does not return one floating-point scalar"
    elif not signature.has_parameters(entry):
        mode, why = "forward", f"no argument of {name} is a parameter"
    else:
        mode, why = "train", f"{name} returns a scalar loss and has parameters"
    if mode == "forward" and (options.optimizer or options.algorithm):
        raise CompileError(
            f"{options.source}: an optimizer or algorithm was given, but {why}"
        )
    options.report(f"mode {mode}: {why}")
    return mode


def _front(
    module: ir.Module, mode: str, options: CompileOptions, *, spread: bool
) -> Pipeline:
    """The passes on the whole program."""
    evaluation = signature.evaluation(module, options.entry)
    optimizer, algorithm = "", "none"
    if mode == "train":
        optimizer, algorithm = training_methods(options, spread=spread)
    rewrites = pipelines.Rewrites(
        options.policy,
        options.layers,
        options.lora or "",
        options.freeze or "",
        options.ema,
    )
    return pipelines.front(
        mode,
        spread=spread,
        entry=options.entry,
        evaluation=evaluation if mode == "train" else None,
        optimizer=optimizer,
        algorithm=algorithm,
        batch=options.batch,
        checkpoints=options.checkpoints,
        rewrites=rewrites,
    )


def training_methods(
    options: CompileOptions, *, spread: bool = False
) -> tuple[str, str]:
    """Optimizer and outer algorithm as checked text; reports what is a default."""
    algorithm = _algorithm_over_a_mesh(options) if spread else ""
    return (
        _method_asked("optimizer", options.optimizer, options),
        algorithm or _method_asked("algorithm", options.algorithm, options),
    )


def _algorithm_over_a_mesh(options: CompileOptions) -> str:
    """Members of a mesh synchronise in every step, and workers in rounds, if asked."""
    workers = _workers(options)
    if workers is not None and str(options.algorithm) == "none":
        raise CompileError(
            f'--mesh {options.mesh}: axis "workers" is for an algorithm that joins '
            "them, and none does not; leave one out"
        )
    if workers is None and not options.synchronizes_in_rounds:
        if options.algorithm != "none":
            options.report(
                "algorithm none: over a mesh each step synchronises the members"
            )
        return "none"
    text = _method_asked("algorithm", options.algorithm, options)
    kind = text.partition("{")[0]
    if not outer_rule(parse_algorithm(text)).shards:
        known = [k for k in KINDS if outer_rule(KINDS[k]()).shards]
        raise CompileError(
            f"algorithm {kind}: it looks at whole tensors, which members of a mesh do "
            f"not have; leave --mesh out, or take one of {', '.join(known)}"
        )
    return text


#: The default of each method, and what reads its text.
_METHODS = {
    "optimizer": (DEFAULT_OPTIMIZER, parse_optimizer),
    "algorithm": (DEFAULT_ALGORITHM, parse_algorithm),
}


def _method_asked(what: str, asked: object, options: CompileOptions) -> str:
    default, parse = _METHODS[what]
    if not asked:
        options.report(f"{what} {default}: the default, set it with --{what}")
    return str(parse(str(asked or default)))


def _manifest(
    module: ir.Module, mode: str, options: CompileOptions, mesh: Mesh | None = None
) -> Manifest:
    """What the bundle says of the whole program; `mesh` is what it is spread over."""
    entry, meshes = options.entry, signature.meshes(module)
    if (workers := _workers(options)) is not None and workers != ELASTIC:
        meshes[group.MESH] = _of_workers(meshes, workers, options)
    if mesh is not None:  # unnamed devices get their names
        changes = {"devices": mesh.devices}
        meshes[mesh.name] = meshes[mesh.name].model_copy(update=changes)
    algorithm = _method(module, "algorithm")
    alone = algorithm is not None and algorithm.kind in EVERY_STEP
    alone = alone and _workers(options) is None
    return Manifest(
        producer=_producer(),
        mode=mode,  # pyright: ignore[reportArgumentType]
        entry=entry,
        functions=signature.functions(module, entry, mode),
        parameters=signature.parameters(module, entry),
        collectives=signature.collectives(module),
        mesh=meshes,
        devices=mesh.devices if mesh else signature.devices(module),
        optimizer=_method(module, "optimizer"),
        algorithm=None if mesh and alone else algorithm,
        training=None if mesh and alone else _training_plan(module),
    )


def _workers(options: CompileOptions) -> int | None:
    return parse_mesh(options.mesh).workers if options.mesh else None


def _of_workers(
    meshes: dict[str, BundleMesh], workers: int, options: CompileOptions
) -> BundleMesh:
    """The workers' mesh with their number; `CompileError` where they never meet."""
    if group.MESH not in meshes:
        raise CompileError(
            f'--mesh {options.mesh}: axis "{group.AXIS}" is for training with an '
            "algorithm that joins all workers in rounds, as diloco; leave it out"
        )
    return meshes[group.MESH].model_copy(update={"axes": {group.AXIS: workers}})


def _method(module: ir.Module, name: str) -> Method | None:
    """The method that pcp-expand-training noted on the module as text."""
    spec = _noted(module, name)
    return None if spec is None else Method(kind=spec.kind, hyper=spec.hyper())


def _training_plan(module: ir.Module) -> TrainingPlan | None:
    """What the outer algorithm exchanges when."""
    spec = _noted(module, "algorithm")
    return None if spec is None else outer_rule(spec).plan(spec)


def _noted(module: ir.Module, name: str) -> Any:
    attribute = module.operation.attributes.get(f"pcp.{name}")
    return None if attribute is None else _METHODS[name][1](plain(attribute))


def _producer() -> dict[str, str]:
    versions = {"pcp": VERSION, iree.PACKAGE: iree.version()}
    try:
        versions["torch-mlir"] = package_version("torch-mlir")
    except PackageNotFoundError:  # the bindings came from elsewhere
        pass
    return versions


class _Keep:
    """Writes the module after each pass: `03-pcp-simplify.mlir`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, step: Step, module: ir.Module, when: str) -> None:
        """Write on "after"; before and on failure there is nothing new."""
        if when == "after":
            name = step.name.translate(str.maketrans("(){}/,", "------")).strip("-")
            path = self.folder / f"{self.count:02}-{name[:60]}.mlir"
            path.write_text(str(module))
            self.count += 1
