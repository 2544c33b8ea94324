"""The fastest schedule of each product of a program."""

from collections.abc import Callable, Sequence

from pcp.compiler import catalog, emission
from pcp.compiler.bundling import builds_of
from pcp.compiler.driver import lower
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import SCHEDULE, Target
from pcp.dialect.bindings import ir
from pcp.errors import ConfigError
from pcp.passes.core.rewriting import operations
from pcp.passes.kernels.contractions import Contraction, contraction_of
from pcp.passes.kernels.processors import host_name
from pcp.passes.kernels.schedule_kernels import ScheduleKernels, is_f32
from pcp.passes.kernels.tiles import Schedule, schedule_for
from pcp.runtime.program import host_processor
from pcp.tools.tune.candidates import STAGES
from pcp.tools.tune.measure import Candidate, measure
from pcp.tuning_table import TunedProduct, TunedSchedule, TuningTable

Choices = dict[Contraction, Schedule | None]
LEAST_GAIN = 0.03
"""What a schedule must win over the one that is used without a table."""


def products(
    module: ir.Module, options: CompileOptions
) -> tuple[Target, list[Contraction]]:
    """The one target of a program and its distinct f32 products, the largest first.

    `ConfigError` for several targets, and for one where pcp chooses no tiles.
    """
    builds = list(builds_of(lower(module, options), options))
    targets = {build.target.name: build.target for build in builds}
    if len(targets) > 1:
        raise ConfigError(f"one target is tuned at a time, not {', '.join(targets)}")
    (target,) = targets.values()
    if not host_processor.runs(target.name):
        raise ConfigError(f"target {target.name}: this processor cannot run its code")
    modules = {id(build.module): build.module for build in builds}.values()
    shapes = dict.fromkeys(s for m in modules for s in _of_target(m, target))
    return target, sorted(shapes, key=lambda shape: -shape.size)


def _of_target(module: ir.Module, target: Target) -> list[Contraction]:
    """The products that pcp-schedule-kernels would meet."""
    names = [step.partition("{")[0] for step in target.passes]
    if SCHEDULE not in names:
        raise ConfigError(
            f"target {target.name}: pcp chooses no tiles there; tune for cpu:host"
        )
    before = target.passes[: names.index(SCHEDULE)]
    copied = emission.copy(module)
    catalog.pipeline(f"builtin.module({','.join(before)})").run(copied)
    shapes = (
        contraction_of(op)
        for op in operations(copied)
        if op.name == "stablehlo.dot_general" and is_f32(op)
    )
    return [shape for shape in shapes if shape is not None and shape.size]


def tune(
    shapes: Sequence[Contraction], target: Target, report: Callable[[str], None]
) -> TuningTable:
    """Measure schedules of products on this machine, and keep the fastest of each."""
    used = _used(target)
    current = {s: schedule_for(s, used.vector, used.far) for s in shapes}
    best = dict(current)
    times: dict[Candidate, float] = {}
    for number, stage in enumerate(STAGES, 1):
        wanted = [
            Candidate(shape, schedule)
            for shape in shapes
            for schedule in (
                None,
                current[shape],
                *stage(shape, used.vector, best[shape]),
            )
        ]
        wanted = [c for c in dict.fromkeys(wanted) if c not in times]
        report(f"stage {number} of {len(STAGES)}: {len(wanted)} kernels")
        times.update(zip(wanted, measure(wanted, target), strict=True))
        for candidate, seconds in times.items():
            shape = candidate.shape
            if seconds < times[Candidate(shape, best[shape])]:
                best[shape] = candidate.schedule
    return _compared(shapes, current, best, target)


def _compared(
    shapes: Sequence[Contraction],
    current: Choices,
    best: Choices,
    target: Target,
) -> TuningTable:
    """The table of what was found, each beside what is used without it, in turns."""
    pairs = [Candidate(shape, of[shape]) for shape in shapes for of in (current, best)]
    times = measure(pairs, target)
    rows = []
    for shape, before, after in zip(shapes, times[::2], times[1::2], strict=True):
        gains = after < before * (1 - LEAST_GAIN)
        schedule = (best if gains else current)[shape]
        rows.append(
            TunedProduct(
                form=shape.form,
                batch=shape.batch,
                rows=shape.rows,
                depth=shape.depth,
                columns=shape.columns,
                schedule=schedule and _written(schedule),
                gflops=round(2e-9 * shape.size / min(before, after), 1),
                untuned=round(2e-9 * shape.size / before, 1),
            )
        )
    return TuningTable(target=target.name, processor=host_name(), products=rows)


def _written(schedule: Schedule) -> TunedSchedule:
    tiles = schedule.tiles
    return TunedSchedule(
        part=[tiles.part_rows, tiles.part_columns],
        register=[tiles.rows, tiles.columns],
        steps=tiles.depth,
        turned=schedule.turned,
    )


def _used(target: Target) -> ScheduleKernels:
    """The pass that chooses without a table."""
    text = next(p for p in target.passes if p.startswith(SCHEDULE))
    found = catalog.pipeline(text).steps[0]
    assert isinstance(found, ScheduleKernels)
    return found
