"""pcp-schedule: the order in which every device runs its tasks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from pcp.dialect.base import integer
from pcp.dialect.bindings import ir
from pcp.errors import PassError, nearest
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import find
from pcp.passes.core.rewriting import functions, refuse
from pcp.passes.pipeline.flow import reads
from pcp.passes.pipeline.schedule_simulation import TaskWork, Timeline, simulate
from pcp.passes.pipeline.wiring import ARGUMENT, Task, Wiring, schedules

#: Messages to one receiver that a sender may be ahead, in the deadlock check: two in
#: flight for each direction of a stage boundary.
BUFFERS = 2


@dataclass(frozen=True)
class SchedulePass(Pass):
    """Order the tasks of every `pcp.schedule`.

    Assumes tasks with stage, microbatch and direction, as pcp-stage makes them.
    With S stages and stage s:

    * `gpipe`: every fwd before every bwd (Huang et al. 2018, arXiv:1811.06965);
    * `1f1b`: bwd(i) before fwd(i+S-s), fwd(i+S-s-1) before bwd(i), so that at most
      S-s microbatches are alive (Narayanan et al. 2020, arXiv:2006.09503);
    * `zb-h1`: as 1f1b, with wgrad(i) behind bwd(i+s) and before fwd(i+S) (Qi et al.
      2023, arXiv:2401.10241). In the others wgrad(i) is right behind bwd(i).

    Each rule is a set of edges "a before b" on one device; together with the values
    they are sorted topologically. Checked then: how many microbatches are alive, and
    by simulation with bounded buffers that nobody waits for ever.

    Before, on one device:

        %0 = "pcp.task"(...) {dir = "fwd", microbatch = 0, stage = 1}
        %1 = "pcp.task"(...) {dir = "fwd", microbatch = 1, stage = 1}
        %2 = "pcp.task"(...) {dir = "bwd", microbatch = 0, stage = 1}
        %3 = "pcp.task"(...) {dir = "bwd", microbatch = 1, stage = 1}

    After `pcp-schedule{kind=1f1b}`, of two stages: fwd 0, bwd 0, fwd 1, bwd 1.
    """

    name = "pcp-schedule"
    kind: str = "1f1b"
    func: str = ""

    def run(self, module: ir.Module) -> None:
        """Reorder the tasks in place."""
        if self.kind not in RULES:
            raise PassError(
                f"{self.name}: kind={self.kind} is not one of {', '.join(RULES)}."
                + nearest(self.kind, RULES)
            )
        with module.context:
            for function in self._functions(module):
                for schedule in schedules(function):
                    order(schedule, self.kind)

    def _functions(self, module: ir.Module) -> list[ir.Operation]:
        if not self.func:
            return list(functions(module))
        if (found := find(module, self.func)) is None:
            raise PassError(f"{self.name}: no function @{self.func}")
        return [found]


# --- the rules ---


@dataclass(frozen=True)
class Shape:
    """S stages, M microbatches."""

    stages: int
    microbatches: int


#: (direction, microbatch)
Slot = tuple[str, int]
Edge = tuple[Slot, Slot]
Rule = Callable[[Shape, int], Iterator[Edge]]


def _in_order(shape: Shape, directions: Sequence[str]) -> Iterator[Edge]:
    for direction in directions:
        for i in range(1, shape.microbatches):
            yield (direction, i - 1), (direction, i)


def _together(shape: Shape) -> Iterator[Edge]:
    """wgrad(i) right behind bwd(i), before the next bwd."""
    for i in range(shape.microbatches):
        yield ("bwd", i), ("wgrad", i)
        yield ("wgrad", i), ("bwd", i + 1)


def gpipe(shape: Shape, stage: int) -> Iterator[Edge]:
    """All forward, then all backward."""
    yield from _in_order(shape, ("fwd", "bwd", "wgrad"))
    yield from _together(shape)
    for direction in ("bwd", "wgrad"):
        yield ("fwd", shape.microbatches - 1), (direction, 0)


def _alternating(shape: Shape, stage: int) -> Iterator[Edge]:
    """One forward, one backward."""
    ahead, last = shape.stages - stage, shape.microbatches - 1
    yield from _in_order(shape, ("fwd", "bwd", "wgrad"))
    for i in range(shape.microbatches):
        yield ("bwd", i), ("fwd", i + ahead)
        yield ("fwd", min(i + ahead - 1, last)), ("bwd", i)


def one_f_one_b(shape: Shape, stage: int) -> Iterator[Edge]:
    """1F1B."""
    yield from _alternating(shape, stage)
    yield from _together(shape)
    for i in range(shape.microbatches):
        yield ("wgrad", i), ("fwd", i + shape.stages - stage)


def zb_h1(shape: Shape, stage: int) -> Iterator[Edge]:
    """Zero bubble, with the memory of 1F1B."""
    yield from _alternating(shape, stage)
    for i in range(shape.microbatches):
        yield ("bwd", min(i + stage, shape.microbatches - 1)), ("wgrad", i)
        yield ("wgrad", i), ("fwd", i + shape.stages)
        yield ("wgrad", i), ("bwd", i + stage + 1)


RULES: dict[str, Rule] = {"1f1b": one_f_one_b, "gpipe": gpipe, "zb-h1": zb_h1}


def alive_at_most(kind: str, shape: Shape, stage: int) -> int:
    """The bound on microbatches whose forward values a stage holds."""
    bound = {"1f1b": shape.stages - stage, "zb-h1": shape.stages}
    return min(bound.get(kind, shape.microbatches), shape.microbatches)


# --- ordering ---


def order(schedule: ir.Operation, kind: str) -> None:
    """Sort the ops of a `pcp.schedule` by the rule, and check what comes out."""
    wiring = Wiring.read(schedule)
    shape = shape_of(wiring)
    edges = list(_edges(wiring, kind, shape))
    *ops, end = (view.operation for view in schedule.regions[0].blocks[0].operations)
    for op in _sorted(schedule, ops, edges):
        op.move_before(end)
    schedule.attributes["kind"] = ir.StringAttr.get(kind)
    wiring = Wiring.read(schedule)
    _check_alive(wiring, kind, shape)
    try:
        simulate(works(wiring), buffers=BUFFERS * shape.stages)
    except PassError as error:
        refuse(schedule, str(error))


def shape_of(wiring: Wiring) -> Shape:
    """The stages and microbatches of a schedule."""
    stages = 1 + max((task.stage for task in wiring.tasks), default=0)
    return Shape(stages, integer(wiring.schedule, "microbatches"))


def _edges(
    wiring: Wiring, kind: str, shape: Shape
) -> Iterator[tuple[ir.Operation, ir.Operation]]:
    """The rule's edges between the tasks that there are."""
    found = {(t.stage, t.direction, t.microbatch): t.op for t in wiring.tasks}
    for stage in range(shape.stages):
        for before, after in RULES[kind](shape, stage):
            a, b = found.get((stage, *before)), found.get((stage, *after))
            if a is not None and b is not None:
                yield a, b


def _sorted(
    schedule: ir.Operation,
    ops: Sequence[ir.Operation],
    edges: Sequence[tuple[ir.Operation, ir.Operation]],
) -> list[ir.Operation]:
    """The ops so that values and edges come true, else in their old order."""
    number = {op: i for i, op in enumerate(ops)}
    after: list[set[int]] = [set() for _ in ops]
    for op in ops:
        for value in reads(op):
            owner = value.owner
            if not isinstance(owner, ir.Block) and owner.operation in number:
                after[number[owner.operation]].add(number[op])
    for a, b in edges:
        after[number[a]].add(number[b])
    waits = [0] * len(ops)
    for targets in after:
        for target in targets:
            waits[target] += 1
    ready = [i for i, count in enumerate(waits) if not count]
    heapify(ready)
    done: list[int] = []
    while ready:
        done.append(heappop(ready))
        for target in after[done[-1]]:
            waits[target] -= 1
            if not waits[target]:
                heappush(ready, target)
    if len(done) < len(ops):
        stuck = next(op for i, op in enumerate(ops) if waits[i])
        refuse(stuck, "stage cycle: the schedule's order and its values contradict")
    return [ops[i] for i in done]


# --- checks ---


def alive(tasks: Sequence[Task]) -> int:
    """The most microbatches whose forward values are held at once on one stage."""
    last = {t.microbatch: n for n, t in enumerate(tasks) if t.direction != "opt"}
    held, most = 0, 0
    for n, task in enumerate(tasks):
        held += task.direction == "fwd"
        most = max(most, held)
        held -= last.get(task.microbatch) == n and task.direction != "opt"
    return most


def _check_alive(wiring: Wiring, kind: str, shape: Shape) -> None:
    for stage in range(shape.stages):
        tasks = [task for task in wiring.tasks if task.stage == stage]
        bound = alive_at_most(kind, shape, stage)
        if tasks and (most := alive(tasks)) > bound:
            refuse(
                tasks[0].op,
                f"stage {stage} would hold {most} microbatches at once; {kind} allows "
                f"{bound}",
            )


def works(
    wiring: Wiring, duration: Callable[[Task], float] = lambda task: 1.0
) -> list[TaskWork]:
    """The tasks as the simulation takes them."""
    devices = list(dict.fromkeys(task.device for task in wiring.tasks))
    return [
        TaskWork(
            devices.index(task.device),
            duration(task),
            tuple(dict.fromkeys(n for n, _ in task.reads if n != ARGUMENT)),
        )
        for task in wiring.tasks
    ]


def timeline(
    schedule: ir.Operation,
    duration: Callable[[Task], float] = lambda task: 1.0,
    *,
    latency: float = 0.0,
) -> Timeline:
    """When each task of a schedule runs; the bubble is `timeline(...).bubble`."""
    return simulate(works(Wiring.read(schedule), duration), latency=latency)
