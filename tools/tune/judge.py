"""Schedules in the program's own step: what wins by itself need not win there.

In a step all threads of the device share caches and memory, operands come from other
kernels, and a product's kernel does more than the product.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pcp.compiler import iree
from pcp.compiler.emission import target_text
from pcp.compiler.options import DEFAULT_OPT_LEVEL
from pcp.compiler.targets import Target
from pcp.dialect.bindings import ir
from pcp.passes.kernels.contractions import Contraction
from pcp.passes.kernels.tiles import Schedule
from pcp.passes.kernels.tuned import text_of
from pcp.tools.profile import timing
from pcp.tools.profile.figures import Times
from pcp.tools.profile.stand_in import stand_in

Choices = Mapping[Contraction, Schedule | None]

LEAST_GAIN = 0.03
"""What a schedule must win over the one that is used without a table, in the step."""

LEAST_STEP_GAIN = 0.01
"""What all of them together must win of the whole step."""

TURNS, SECONDS = 4, 0.4
_KERNEL = re.compile(r"_dispatch_\d+_((?:batch_)?matmul_(?:like_)?\d+(?:x\d+)+)_f32$")


@dataclass(frozen=True)
class Step:
    """The function of a program whose time counts, and the target it is for."""

    module: ir.Module
    target: Target
    function: str

    def compiled(self, choices: Choices) -> bytes:
        """The program with products as `choices` say."""
        text = target_text(self.module, self.target.tuned(text_of(choices))).plain
        flags = (f"--iree-opt-level={DEFAULT_OPT_LEVEL}", *self.target.all_flags)
        return iree.compile_text(text, flags, timeout=600)

    def times(self, contents: Sequence[bytes], *, each: bool) -> list[list[Times]]:
        """The function of each module several times, all threads, in turns."""
        imports, device = stand_in(self.module), self.target.driver
        found: list[list[Times]] = [[] for _ in contents]
        for _ in range(TURNS):
            for times, content in zip(found, contents, strict=True):
                times.append(
                    timing.measure(
                        content, imports, self.function, device, SECONDS, each=each
                    )
                )
        return found


def kept(
    step: Step, used: Choices, best: Choices, report: Callable[[str], None]
) -> Choices:
    """`used`, but with those of `best` that make the step faster; often all or none."""
    changed = {s: best[s] for s in best if best[s] != used[s]}
    if not changed:
        return used
    report(f"@{step.function} with and without {len(changed)} schedules")
    with ThreadPoolExecutor(2) as pool:
        plain, tuned = pool.map(step.compiled, ({}, changed))
    before, after = map(_kernels, step.times((plain, tuned), each=True))
    winning = {s: changed[s] for s in _winning(changed, used, before, after)}
    if not winning:
        return used
    if winning != changed:
        report(f"{len(winning)} are faster there")
        tuned = step.compiled(winning)
    without, with_ = (
        min(t.ms for t in times) for times in step.times((plain, tuned), each=False)
    )
    report(f"@{step.function}: {without:.2f} ms without, {with_:.2f} ms with them")
    faster = with_ < without * (1 - LEAST_STEP_GAIN)
    return {**used, **winning} if faster else used


def _winning(
    changed: Choices,
    used: Choices,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> Iterable[Contraction]:
    """The products whose kernels are clearly faster; those of one name together."""
    for shape, schedule in changed.items():
        old, new = kernel_name(shape, used[shape]), kernel_name(shape, schedule)
        if old in before and new in after:
            if after[new] < before[old] * (1 - LEAST_GAIN):
                yield shape


def _kernels(turns: Sequence[Times]) -> dict[str, float]:
    """The least time of the kernels of each name, all calls of a step together."""
    least: dict[str, float] = {}
    for times in turns:
        total: dict[str, float] = {}
        for one in times.dispatches:
            if said := _KERNEL.search(one.name):
                name = said.group(1)
                total[name] = total.get(name, 0.0) + one.ms
        for name, ms in total.items():
            least[name] = min(ms, least.get(name, ms))
    return least


def kernel_name(shape: Contraction, schedule: Schedule | None) -> str:
    """What IREE calls the kernels of a product, whatever its form."""
    batch = [shape.batch] * bool(shape.batch)
    extents = [*batch, shape.rows, shape.columns, shape.depth]
    kind = "batch_matmul" if shape.batch else "matmul"
    if schedule is not None and schedule.panels:
        width = schedule.tiles.columns
        extents[-2:] = [shape.columns // width, width, shape.depth]
        kind = "matmul_like"
    return f"{kind}_{'x'.join(map(str, extents))}"
