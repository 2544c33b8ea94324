"""The fastest schedule of each product of a program."""

from collections.abc import Callable, Sequence

from pcp.compiler import catalog, emission
from pcp.compiler.bundling import builds_of
from pcp.compiler.driver import lower
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import SCHEDULE, Target
from pcp.dialect.bindings import ir
from pcp.errors import ConfigError
from pcp.passes.core.rewriting import functions, operations
from pcp.passes.kernels.contractions import Contraction, contraction_of, is_f32
from pcp.passes.kernels.processors import host_name
from pcp.passes.kernels.schedule_kernels import ScheduleKernels
from pcp.passes.kernels.tiles import Schedule, schedule_for
from pcp.runtime.program import host_processor
from pcp.tools.tune.candidates import STAGES
from pcp.tools.tune.judge import Step, kept
from pcp.tools.tune.measure import Candidate, measure
from pcp.tuning_table import TunedProduct, TunedSchedule, TuningTable

_LONGEST = ("grad", "main")
"""The functions of a program, the one that a step spends its time in first."""


def products(
    module: ir.Module, options: CompileOptions
) -> tuple[Step, list[Contraction]]:
    """The step of a program's one target, and its f32 products, the largest first.

    `ConfigError` for several targets, and for one where pcp chooses no tiles.
    """
    program = lower(module, options)
    builds = list(builds_of(program, options))
    targets = {build.target.name: build.target for build in builds}
    if len(targets) > 1:
        raise ConfigError(f"one target is tuned at a time, not {', '.join(targets)}")
    (target,) = targets.values()
    if not host_processor.runs(target.name):
        raise ConfigError(f"target {target.name}: this processor cannot run its code")
    modules = {id(build.module): build.module for build in builds}.values()
    shapes = dict.fromkeys(s for m in modules for s in _of_target(m, target))
    first = builds[0].module
    names = {ir.StringAttr(f.attributes["sym_name"]).value for f in functions(first)}
    longest = next((n for n in _LONGEST if n in names), program.manifest.entry)
    step = Step(first, target, longest)
    return step, sorted(shapes, key=lambda shape: -shape.size)


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
    shapes: Sequence[Contraction], step: Step, report: Callable[[str], None]
) -> TuningTable:
    """Measure schedules of products on this machine, and keep what the step gains by.

    Candidates are compared by themselves on one thread; the fastest of each product in
    the whole step, with all threads.
    """
    target = step.target
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
        if not wanted:  # the target's own code is the fastest for every product
            continue
        report(f"stage {number} of {len(STAGES)}: {len(wanted)} kernels")
        times.update(zip(wanted, measure(wanted, target), strict=True))
        for candidate, seconds in times.items():
            shape = candidate.shape
            if seconds < times[Candidate(shape, best[shape])]:
                best[shape] = candidate.schedule
    chosen = kept(step, current, best, report)
    rows = []
    for shape in shapes:
        before, after = (times[Candidate(shape, of[shape])] for of in (current, chosen))
        schedule = chosen[shape]
        rows.append(
            TunedProduct(
                form=shape.form,
                batch=shape.batch,
                rows=shape.rows,
                depth=shape.depth,
                columns=shape.columns,
                schedule=schedule and _written(schedule),
                gflops=round(2e-9 * shape.size / after, 1),
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
        panels=schedule.panels,
    )


def _used(target: Target) -> ScheduleKernels:
    """The pass that chooses without a table."""
    text = next(p for p in target.passes if p.startswith(SCHEDULE))
    found = catalog.pipeline(text).steps[0]
    assert isinstance(found, ScheduleKernels)
    return found
