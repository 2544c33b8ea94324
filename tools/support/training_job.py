"""What the training commands share: experiments, compilers, devices, logs."""

import os
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import entry_points
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcp import strict_json
from pcp.bundle import sha256
from pcp.errors import ConfigError
from pcp.mesh import WORKERS
from pcp.passes.core import spec as specs
from pcp.passes.training import policy
from pcp.passes.training.optimizers import groups
from pcp.passes.training.optimizers import spec as optimizers
from pcp.passes.training.outer import spec as outer
from pcp.runtime.program import host_processor
from pcp.tools.support import hf_training
from pcp.tools.support.command import Parser
from pcp.tools.support.lines import say
from pcp.tools.support.model_check import inspected, read_model
from pcp.tools.support.progress import doing, expected
from pcp.training.config import experiment_file as experiments
from pcp.training.config.experiment import Experiment
from pcp.training.config.island_options import axes_of
from pcp.training.data.formats.table import check_readable
from pcp.training.observe.metrics import Observer
from pcp.training.storage.run_folder import RunFolder
from pcp.training.trainer.bundle_checks import check_islands
from pcp.tuning_table import fitting

if TYPE_CHECKING:
    from pcp.passes.planning.choice import Choice
    from pcp.passes.planning.evaluation import Judged


def check_compiler(model: str) -> None:
    """`MissingPackage` now, and not when the first worker comes; bundles need none."""
    if not model.endswith(".pcp"):
        from pcp.compiler import iree
        from pcp.dialect import bindings  # noqa: F401  raises where there are none

        iree.binary()


def add_set(parser: Parser) -> None:
    """The flag `--set`, of all commands that read an experiment."""
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        type=_change,
        metavar="KEY=VALUE",
        help="instead of the experiment's key, as JSON or a word; repeatable",
    )


def _change(text: str) -> tuple[str, object]:
    """`learning_rate=3e-4`, `data.seed=1`, `clip_norm=null`, `algorithm=ddp`."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ArgumentTypeError(f"expected KEY=VALUE, not {text!r}")
    try:
        return key, strict_json.parse(value)
    except ValueError:
        return key, value


def read_experiment(
    path: str,
    model: str | None = None,
    algorithm: str | None = None,
    changes: Iterable[tuple[str, object]] = (),
    hf: str | None = None,
) -> Experiment:
    """The experiment in `path`; `--model`, `--algorithm`, `--set` change keys of it.

    With `hf`, a folder of transformers, it needs no model_path.
    """
    given = {} if hf is None else {"model_path": str(Path(hf).absolute())}
    experiment = experiments.load(path, dict(changes), given)
    if hf is not None:
        experiment = hf_training.tokenized(experiment, hf)
    experiment = checked(experiment, path, algorithm)
    if model is None:
        return experiment
    if not Path(model).exists():
        raise ConfigError(f"--model: no file {model!r}")
    return experiment.model_copy(update={"model_path": str(Path(model).absolute())})


def checked(
    experiment: Experiment, path: str, algorithm: str | None = None
) -> Experiment:
    """An experiment that was read from `path`, when all that it names can be read."""
    check_readable(experiment)
    _load_extensions(experiment)
    if algorithm is not None:
        experiment = experiment.model_copy(update={"algorithm": algorithm})
    with _blamed(path):
        policy.parse(experiment.precision or "")
    with _blamed(f"{path}: optimizer"):
        groups.parse(optimizer_text(experiment))
    with _blamed(f"{path}: algorithm" if algorithm is None else "--algorithm"):
        outer.parse(algorithm_text(experiment))
    return experiment


def read_run(flags: Namespace, hf: str | None = None) -> Experiment:
    """The experiment of `pcp train` and `pcp shepherd`, by their flags.

    A run that is continued keeps what --set gave before, unless --set gives it now, or
    the experiment is the file in the run's own folder, which has it already.
    """

    def read(changes: Iterable[tuple[str, object]]) -> Experiment:
        return read_experiment(flags.config, flags.model, flags.algorithm, changes, hf)

    folder = RunFolder(Path(flags.run).absolute()) if flags.run else None
    if folder is None or not flags.resume:
        experiment = read(flags.changes)
        if not (flags.resume or experiment.should_resume):
            return experiment
        folder = folder or RunFolder.latest(experiment)
    if folder is None or folder.experiment == Path(flags.config).absolute():
        return read(flags.changes)
    kept = {k: v for k, v in folder.changes().items() if k not in dict(flags.changes)}
    if kept:
        words = " ".join(f"{key}={strict_json.dumps(v)}" for key, v in kept.items())
        say(f"as --set said when {folder.name} began: {words}")
    return read([*kept.items(), *flags.changes])


@contextmanager
def _blamed(where: str) -> Iterator[None]:
    """A text's `ConfigError` with the place that the text comes from."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _load_extensions(experiment: Experiment) -> None:
    """Register the experiment's and installed ones; without any no compiler is needed.

    An extension names optimizers and algorithms, which the experiment's text may say.
    """
    if experiment.extensions or entry_points(group="pcp.extensions"):
        from pcp.tools import extension

        extension.load_all(experiment.extensions)


def optimizer_text(experiment: Experiment) -> str:
    """The inner optimizer as the compiler reads it: its text, and the keys' values."""
    keys = {
        "weight_decay": "weight_decay",
        "beta1": "beta1",
        "beta2": "beta2",
        "eps": "epsilon",
        "momentum": "inner_momentum",
    }
    values: dict[str, object] = {
        "lr": experiment.learning_rate,
        "clip_norm": experiment.clip_norm or 0.0,
        "schedule": experiment.schedule,
        "warmup_steps": experiment.warmup_steps,
        "total_steps": experiment.inner_steps,
    }
    kind, _ = specs.split(experiment.optimizer)
    values |= _chosen(experiment, keys, whole=kind in ("adamw", "sgd"))
    if kind == "sgd" and "weight_decay" not in experiment.model_fields_set:
        del values["weight_decay"]
    base = specs.filled(experiment.optimizer, optimizers.KINDS, "optimizer", values)
    return groups.text(base, experiment.parameter_groups)


def algorithm_text(experiment: Experiment) -> str:
    """The outer algorithm as the compiler reads it: its text, and the keys' values."""
    keys = {"lr": "outer_learning_rate", "momentum": "nesterov_momentum"}
    kind, _ = specs.split(experiment.algorithm)
    values = _chosen(experiment, keys, whole=kind == "diloco")
    return specs.filled(experiment.algorithm, outer.KINDS, "algorithm", values)


def in_graph_batch(experiment: Experiment) -> int:
    """Samples that a compiled step takes at once; 0: the model's own batch."""
    inside = experiment.use_in_graph_accumulation
    return (experiment.effective_batch_size or 0) if inside else 0


def _chosen(
    experiment: Experiment, keys: Mapping[str, str], *, whole: bool
) -> dict[str, object]:
    """The values of an experiment's keys that were given, or of all of them."""
    return {
        name: getattr(experiment, key)
        for name, key in keys.items()
        if whole or key in experiment.model_fields_set
    }


def compiler_for(
    experiment: Experiment, report: Callable[[str], None]
) -> Callable[[str], bytes]:
    """`compile_for(target)`: a bundle from the experiment's model.

    A bundle must hold the target already; a model is compiled, with the
    compiler imported only then. `ConfigError` now for what no island could train.
    """
    path = experiment.model_path
    if path.endswith(".pcp"):
        for key in ("memory", "precision", "tuning"):
            if (asked := getattr(experiment, key)) is not None:
                raise ConfigError(
                    f"{key} {asked}: {path} is compiled already; give it to "
                    f"pcp-compile --{key}, or name the model"
                )
        return lambda target: _from_bundle(path, target)
    if max(experiment.sizes) > 1:
        _check_islands(experiment)

    def compile_for(target: str) -> bytes:
        from pcp.passes.kernels.processors import host_name
        from pcp.tools import kept_bundle
        from pcp.tools.support import compile_job

        began = time.monotonic()
        what, file = f"compiling for {target}", Path(path)
        name, _, mesh = target.partition(" ")
        size = file.stat().st_size if file.is_file() else 1  # not there: told below
        about = expected(what, size)
        how_long = "" if about is None else f" (up to {about:.0f} s)"
        report(f"compiling {Path(path).name} for {target}{how_long} ...")
        model = read_model(path)
        inspected(experiment, model)
        tuning = fitting(experiment.tuning, name, host_name(), report)
        spread = _island(experiment, mesh) if mesh else {}
        options = _options(experiment, targets=(name,), tuning=tuning, **spread)
        place = kept_bundle.niche(options)
        if place is not None and (kept := place.get()) is not None:
            # A shepherd that starts again: its workers wait.
            report(f"the bundle is from the cache, {len(kept.content)} bytes")
            return kept.content
        with doing(what, size, report=report) as now:
            content = compile_job.new_bundle(model, options, place, now)
        seconds = time.monotonic() - began
        report(f"compiled {Path(path).name} for {target} in {seconds:.1f} s")
        return content

    return compile_for


def _check_islands(experiment: Experiment) -> None:
    """Refuse an algorithm that islands do not have, before anything is compiled."""
    from pcp.passes.training.expand_training import outer_rule

    algorithm = outer.parse(algorithm_text(experiment))
    plan = outer_rule(algorithm).plan(algorithm)
    check_islands(plan, " and ".join(experiment.shapes))


def _options(experiment: Experiment, **where: Any) -> Any:
    """How the experiment's model is compiled, and `where` it is to run.

    The compiler is imported only here.
    """
    from pcp.compiler.options import CompileOptions
    from pcp.tools.support.cache_folder import cache_folder

    spread = experiment.mesh is not None
    said: dict[str, Any] = dict(
        mode="train",
        optimizer=optimizer_text(experiment),
        algorithm=algorithm_text(experiment),
        batch=in_graph_batch(experiment),
        mesh=f"{WORKERS}=elastic,{experiment.mesh}" if spread else None,
        sharding=experiment.sharding,
        zero=experiment.zero,
        microbatches=experiment.microbatches,
        memory=experiment.memory,
        precision=experiment.precision,
        layers=experiment.layers,
        lora=experiment.lora,
        freeze=experiment.freeze,
        ema=experiment.ema,
        cache=cache_folder(),
        source=experiment.model_path,
    )
    return CompileOptions(**said | where)


def _island(experiment: Experiment, mesh: str) -> dict[str, Any]:
    """The options for an island of a mesh that exchanges with others of other meshes.

    On one device nothing is cut, whatever is said for the others.
    """
    whole = prod(axes_of(mesh).values()) == 1
    alone: dict[str, Any] = {"sharding": "none", "zero": 0} if whole else {}
    return {"mesh": f"{WORKERS}=elastic,{mesh}", "unlike": True} | alone


LAYOUTS = "layouts"
"""Files of planned layouts, in the folder of the runs."""


def planned(experiment: Experiment, report: Callable[[str], None] = say) -> Experiment:
    """The experiment with an island's mesh, if it names a cluster to choose one for.

    Taken is what lets all islands that there are devices for train most in a second,
    where one fits in the memory of the smallest device. A mesh that is given is judged
    alone. `PassError` where nothing fits, with the least memory that would do.
    """
    if experiment.cluster is None:
        return experiment
    if experiment.model_path.endswith(".pcp"):
        raise ConfigError(
            f"cluster {experiment.cluster}: {experiment.model_path} is compiled "
            "already; name the model, or leave the cluster out"
        )
    from pcp.compiler import driver

    left = ("mesh", "sharding", "microbatches", "memory")
    open_ = experiment.model_copy(update=dict.fromkeys(left) | {"zero": 0})
    options = _options(open_, cluster=Path(experiment.cluster))
    model, axes = read_model(experiment.model_path), experiment.axes or None
    choice = driver.plan(model, options, axes=axes, islands=True)
    taken = _best(choice)
    for line in _told(choice, taken):
        report(line)
    plan = taken.candidate
    axes = [f"{axis}={n}" for axis, n in plan.axes.items() if n > 1]
    layouts = choice.sharding(plan) if experiment.sharding is None else {}
    changes = {
        "mesh": ",".join(axes) or None,
        "zero": plan.zero if plan.dp > 1 else 0,
        "microbatches": plan.microbatches if plan.pp > 1 else None,
        "workers": len(choice.devices) // len(plan.devices),
    } | ({"sharding": _written(experiment, layouts)} if layouts else {})
    return experiment.model_copy(update=changes)


def _best(choice: "Choice") -> "Judged":
    """The fastest that fits, its stages in the order that islands have."""
    from pcp.compiler.options import DEFAULT_SCHEDULE

    orders = ("", DEFAULT_SCHEDULE)
    fit = [j for j in choice.judged if j.fits and j.candidate.schedule in orders]
    if not fit:
        raise ConfigError(
            f"no plan with stages in the order {DEFAULT_SCHEDULE} fits in memory, and "
            "islands have no other; `pcp plan` lists them all"
        )
    return fit[0]


def _told(choice: "Choice", taken: "Judged") -> list[str]:
    """What was taken, and what it was weighed against."""
    from pcp.passes.core.sizes import bytes_text

    plan, others = taken.candidate, len(choice.judged) - 1
    islands = len(choice.devices) // len(plan.devices)
    made = f"{islands} islands of {plan}" if len(plan.devices) > 1 else "whole workers"
    lines = [
        f"planned for {len(choice.devices)} devices: {made}, "
        f"{1e3 * taken.cost.seconds:.1f} ms a step, holding "
        f"{bytes_text(taken.memory)} of the {bytes_text(taken.room)} of the smallest; "
        f"{others} other plans judged"
    ]
    if cut := choice.describe(plan):
        lines.append(f"cut along tp: {cut}")
    return lines


def _written(experiment: Experiment, layouts: dict[str, Any]) -> str:
    """The file of these layouts; the same ones are written once."""
    content = strict_json.dumps({"tensors": layouts}).encode()
    folder = Path(experiment.checkpoint_dir) / LAYOUTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{sha256(content)[:16]}.json"
    path.write_bytes(content)
    return str(path)


def _from_bundle(path: str, target: str) -> bytes:
    from pcp.bundle import Bundle

    bundle = Bundle.read(path)
    wanted = host_processor.substitutes(target)
    there = [t for t in wanted if t in bundle.targets]
    bundle.module((there or wanted[-1:])[0])  # refuses, listing what there is
    return bundle.to_bytes()


def run_folder(
    experiment: Experiment, *, resume: bool, where: str | None
) -> tuple[RunFolder, bool]:
    """The folder of a new run, or of the one to continue; and whether it is one."""
    if where is not None:
        folder = RunFolder(Path(where).absolute())
        known = folder.ledger.exists()
        if known and not resume:
            raise ConfigError(
                f"{where} holds a run already; continue it with --resume, or name "
                "another folder"
            )
        return RunFolder.at(folder.path, experiment), known
    if resume and (latest := RunFolder.latest(experiment)) is not None:
        return RunFolder.at(latest.path, experiment), True
    return RunFolder.create(experiment, datetime.now()), False


@contextmanager
def discarded_unless_begun(folder: RunFolder) -> Iterator[None]:
    """A run is to begin in this block; where it does not, its folder goes again."""
    try:
        yield
    finally:
        folder.discard()


def wandb_observer(experiment: Experiment, run: str) -> list[Observer]:
    """W&B where there is a key, in the experiment or in `WANDB_API_KEY`."""
    key = experiment.wandb_api_key or os.environ.get("WANDB_API_KEY")
    if not key:
        return []
    from pcp.training.observe.wandb import WandbRun

    return [WandbRun(experiment, key, run)]
