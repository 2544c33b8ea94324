"""A module and options become a bundle.

    copy ─► prepare ─► the mode's pipeline ─► signature ─┐
                                  │ per target           ├─► Bundle
                                  └► assign, strip, iree ┘

The caller's module is not touched: the passes run on a copy in a context of its
own. Each target is compiled by a process of IREE's, several at a time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from pcp.bundle import Bundle, Manifest, Method, Module
from pcp.compiler import iree, partitioned, pipelines, signature
from pcp.compiler.asked import check_whole
from pcp.compiler.attributes import plain
from pcp.compiler.emission import copy, emit
from pcp.compiler.mesh_targets import targets_of
from pcp.compiler.options import (
    DEFAULT_ALGORITHM,
    DEFAULT_OPTIMIZER,
    CompileOptions,
)
from pcp.compiler.sources import with_source
from pcp.compiler.targets import find
from pcp.dialect.bindings import ir
from pcp.errors import CompileError, IRError
from pcp.passes.core.base import Observer, Pipeline, Step
from pcp.passes.planning.plan import Choice
from pcp.passes.training.optimizers.groups import parse as parse_optimizer
from pcp.passes.training.outer.spec import parse as parse_algorithm
from pcp.version import VERSION


@dataclass(frozen=True)
class Program:
    """The IR between the passes and the target compilers.

    `source` is the text after import, `module` what the passes left, `manifest`
    everything but the compiled modules.
    """

    source: str
    module: ir.Module
    manifest: Manifest


def compile(module: ir.Module, options: CompileOptions) -> Bundle:
    """Compile `module` for all targets; raises what `pcp.errors` names.

    With a mesh of a known size the bundle holds a program for each of its devices.
    """
    if partitioned.is_wanted(module, options):
        return _compile_partitioned(module, options)
    targets = [find(name) for name in dict.fromkeys(options.targets)]
    program = lower(module, options)
    compiled = emit(program.module, targets, options)
    members = {"ir/source.mlir": program.source.encode()}
    members["ir/program.mlir"] = str(program.module).encode()
    modules = {}
    for target, content in zip(targets, compiled, strict=True):
        file = f"modules/{target.file_name}.vmfb"
        members[file] = content
        modules[target.name] = Module(
            file=file, target=target.name, backend=target.backend, driver=target.driver
        )
    manifest = program.manifest.model_copy(update={"modules": modules})
    return Bundle.build(manifest, members)


def _compile_partitioned(module: ir.Module, options: CompileOptions) -> Bundle:
    program, mode = lower_partitioned(module, options)
    targets = targets_of(program.whole, program.mesh, options)
    changes = {
        "producer": _producer(),
        "optimizer": _method(program.whole, "optimizer"),
    }
    manifest = program.manifest.model_copy(update=changes)
    program = replace(program, manifest=manifest)
    try:
        return partitioned.emit(program, targets, mode, options)
    except CompileError as error:
        overlaps = options.bucket_bytes or partitioned.under_way(options)
        if not overlaps or not isinstance(error.__cause__, iree.LateImport):
            raise
        options.report(f"{error}; again with --bucket-bytes 0 --inflight 0")
        plain = replace(options, bucket_bytes=0, inflight=0)
        return _compile_partitioned(module, plain)


# --- passes ------------------------------------------------------------------


def lower_partitioned(
    module: ir.Module, options: CompileOptions
) -> tuple[partitioned.Partitioned, str]:
    """Run the passes for a mesh on a copy of `module`; also the mode chosen."""
    with _sourced(options):
        copied, observers = copy(module), _observers(options)
        mode, optimizer = _prepared(copied, options, observers)
        return partitioned.lower(copied, mode, optimizer, options, observers), mode


def plan(module: ir.Module, options: CompileOptions, **wanted: Any) -> Choice:
    """What `pcp-plan` makes of a model and `options.cluster`; see `Search`.

    `wanted` are options of the search: the last ZeRO stage, axes, how many to judge.
    """
    with _sourced(options):
        copied = copy(module)
        mode, optimizer = _prepared(copied, options, [])
        return partitioned.choices(copied, mode, optimizer, options, **wanted)


def _prepared(
    module: ir.Module, options: CompileOptions, observers: Sequence[Observer]
) -> tuple[str, str]:
    """Run the passes in front of a mode's own; the mode and its optimizer."""
    mode = choose_mode(module, options)
    if options.batch:
        raise CompileError(
            f"batch {options.batch}: over a mesh gradients are not accumulated in the "
            "graph; leave it out, or leave the mesh out"
        )
    if options.algorithm and str(options.algorithm) not in ("none", "ddp"):
        raise CompileError(
            f"algorithm {options.algorithm}: over a mesh the program synchronises "
            "in every step; leave --algorithm out, or leave --mesh out"
        )
    entry = signature.entry_function(module, options.entry)
    infer = mode == "train" or signature.has_parameters(entry)
    pipelines.prepare(infer_roles=infer).run(module, observers)
    if mode != "train":
        return mode, ""
    if options.algorithm != "none":
        options.report("algorithm none: over a mesh each step synchronises the members")
    return mode, _method_asked("optimizer", options.optimizer, options)


def lower(module: ir.Module, options: CompileOptions) -> Program:
    """Run the passes of the chosen mode on a copy of `module`."""
    check_whole(options)
    with _sourced(options):
        return _lower(copy(module), options)


@contextmanager
def _sourced(options: CompileOptions) -> Iterator[None]:
    """Errors inside name the model's file."""
    try:
        yield
    except IRError as error:
        message = with_source(str(error), options.source)
        if message == str(error):
            raise
        raise type(error)(message) from error
    except CompileError as error:
        raise CompileError(with_source(str(error), options.source)) from error


def _observers(options: CompileOptions) -> list[Observer]:
    return [_Keep(options.keep_ir)] if options.keep_ir else []


def _lower(module: ir.Module, options: CompileOptions) -> Program:
    observers = _observers(options)
    mode = choose_mode(module, options)
    entry = signature.entry_function(module, options.entry)
    infer = mode == "train" or (mode == "grad" and signature.has_parameters(entry))
    pipelines.prepare(infer_roles=infer).run(module, observers)
    source = str(module)
    _mode_pipeline(mode, options).run(module, observers)
    return Program(source, module, _manifest(module, mode, options))


def choose_mode(module: ir.Module, options: CompileOptions) -> str:
    """The mode asked for, or train where that is possible; reports why."""
    if options.mode is not None:
        return options.mode
    entry = signature.entry_function(module, options.entry)
    name = f"@{options.entry}"
    if not signature.scalar_loss(entry):
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


def _mode_pipeline(mode: str, options: CompileOptions) -> Pipeline:
    if mode != "train":
        return pipelines.named(mode, entry=options.entry)
    optimizer, algorithm = training_methods(options)
    return pipelines.named(
        mode,
        entry=options.entry,
        optimizer=optimizer,
        algorithm=algorithm,
        batch=options.batch,
    )


def training_methods(options: CompileOptions) -> tuple[str, str]:
    """Optimizer and outer algorithm as checked text; reports what is a default."""
    return (
        _method_asked("optimizer", options.optimizer, options),
        _method_asked("algorithm", options.algorithm, options),
    )


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


def _manifest(module: ir.Module, mode: str, options: CompileOptions) -> Manifest:
    entry = options.entry
    return Manifest(
        producer=_producer(),
        mode=mode,  # type: ignore[arg-type]
        entry=entry,
        functions=signature.functions(module, entry, mode),
        parameters=signature.parameters(module, entry),
        collectives=signature.collectives(module),
        mesh=signature.meshes(module),
        devices=signature.devices(module),
        optimizer=_method(module, "optimizer"),
        algorithm=_method(module, "algorithm"),
    )


def _method(module: ir.Module, name: str) -> Method | None:
    """The method that pcp-expand-training noted on the module as text."""
    attribute = module.operation.attributes.get(f"pcp.{name}")
    if attribute is None:
        return None
    spec = _METHODS[name][1](plain(attribute))
    return Method(kind=spec.kind, hyper=spec.hyper())


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
