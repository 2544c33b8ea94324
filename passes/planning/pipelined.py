"""A candidate with pipeline stages: cut, scheduled, and simulated.

The passes of `pcp-compile --mesh pp=S` make every device's program. Between two of
its messages a device works by the roofline, and exchanges with those of its stage;
a message costs both ends what handing over costs, and is alpha and beta on its way.
What comes of that, with blocking receives, is the schedule's timeline. Devices of one
host slow each other down while they work only: less, the more of the time they wait.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pcp.dialect.base import integer, symbol
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.passes.analysis.cluster import Cluster
from pcp.passes.analysis.cost import size_bytes
from pcp.passes.analysis.storage import Storage
from pcp.passes.collectives.bucket_collectives import BucketCollectives
from pcp.passes.collectives.overlap_collectives import (
    OverlapCollectives,
    usual_inflight,
)
from pcp.passes.core.rewriting import device_modules, functions
from pcp.passes.core.walk import block_of
from pcp.passes.pipeline.lower_schedule import LowerSchedule
from pcp.passes.pipeline.schedule import SchedulePass, alive
from pcp.passes.pipeline.schedule_simulation import TaskWork, Timeline, simulate
from pcp.passes.pipeline.stage import AXIS, Stage
from pcp.passes.pipeline.wiring import Wiring, schedules
from pcp.passes.planning import cost
from pcp.passes.planning.candidates import Candidate
from pcp.passes.planning.cost import PlanCost, PlannedMember, Stored, Walk
from pcp.passes.planning.evaluation import Judge, Judged, fullest, step_bytes
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.propagate_sharding import PropagateSharding
from pcp.passes.simplify.split_contractions import SplitContractions


class Uncut(PassError):
    """pcp-stage finds no stages, in whichever order they were to run."""


def judge(by: Judge, candidate: Candidate) -> Judged:
    """The candidate's cost; `PassError` at the op that stages are impossible for."""
    module = by.spread(candidate)
    held_at_once = _cut(module, candidate, by)
    with by.context:
        (mesh,) = read_meshes(module).values()
        homes = device_modules(module)
        every = [Program.read(homes[device]) for device in mesh.devices]

        def run(busy: float) -> Run:
            working = by.cluster.among(candidate.devices, busy)
            members = [PlannedMember(working, mesh, place) for place in mesh.members]
            return Run.of(every, members)

        first = run(1.0)
        last = run(1.0 - first.timeline.bubble)
        held = {
            device: step_bytes(program.functions)
            for device, program in zip(mesh.devices, every, strict=True)
        }
    return replace(
        fullest(candidate, last.cost(), held, by.cluster),
        alive=held_at_once,
        bubble=last.timeline.bubble,
    )


def _cut(module: ir.Module, candidate: Candidate, by: Judge) -> tuple[int, ...]:
    """A module for each device; the microbatches alive at once, by stage."""
    if set(candidate.axes) != {AXIS}:
        PropagateSharding().run(module)
    stage = Stage(
        microbatches=candidate.microbatches,
        tied=by.tied,
        share_loss=by.mode == "train",
    )
    try:
        stage.run(module)
    except PassError as error:
        raise Uncut(str(error)) from error
    SchedulePass(kind=candidate.schedule).run(module)
    with by.context:
        held = _alive(module, candidate.pp)
    LowerSchedule().run(module)
    BucketCollectives(bytes=by.bucket_bytes).run(module)
    OverlapCollectives(inflight=usual_inflight(candidate.zero)).run(module)
    split_contractions(module, by.cluster)
    return held


def split_contractions(module: ir.Module, cluster: Cluster) -> None:
    """Of every processor's program, as its target does."""
    for name, home in device_modules(module).items():
        if not cluster.devices[name].overlaps:
            SplitContractions().split(home)


def _alive(module: ir.Module, stages: int) -> tuple[int, ...]:
    """Microbatches whose forward values each stage holds, in the fullest function."""
    most = [0] * stages
    for function in functions(module):
        for schedule in schedules(function):
            tasks = Wiring.read(schedule).tasks
            for stage in range(stages):
                own = [task for task in tasks if task.stage == stage]
                most[stage] = max(most[stage], alive(own))
    return tuple(most)


# --- a device's program between its messages ---


@dataclass(frozen=True)
class Program:
    """The functions of a device, and what they store."""

    functions: list[ir.Operation]
    stored: list[Stored]

    @classmethod
    def read(cls, home: ir.Operation) -> "Program":
        found = list(functions(home))
        return cls(found, [Storage.read(block_of(f, 0)).stored for f in found])


@dataclass
class _Segment:
    """What a device does from one message to the next."""

    device: int
    start: float
    end: float = 0.0
    needs: int | None = None
    """The channel of the message that it waits for first."""
    gives: int | None = None
    """The channel of the one that it sends at its end."""
    travel: float = 0.0


@dataclass
class _Segments:
    """Walks through a device's program and cuts it at its messages."""

    number: int
    member: PlannedMember
    done: list[_Segment] = field(default_factory=list)
    cost: PlanCost = field(default_factory=PlanCost)

    def program(self, program: Program) -> "_Segments":
        """One function behind the other."""
        for function, stored in zip(program.functions, program.stored, strict=True):
            walk = Walk(self.member, stored)
            self.done.append(_Segment(self.number, 0.0))
            for view in block_of(function, 0).operations:
                self._op(view.operation, walk)
            walk.clock.wait(walk.clock.wire)
            self.done[-1].end = walk.clock.now
            self.cost += walk.cost
        return self

    def _op(self, op: ir.Operation, walk: Walk) -> None:
        clock = walk.clock
        if op.name == "pcp.recv":
            self._next(clock.now)
            self.done[-1].needs = integer(op, "channel")
            clock.wait(clock.now + self._hand_over(op.results[0]))
        elif op.name == "pcp.send":
            seconds, travel = self._message(op)
            walk.sent += size_bytes(op.operands[0])
            clock.wait(clock.now + seconds)
            self.done[-1].gives = integer(op, "channel")
            self.done[-1].travel = travel
            self._next(clock.now)
        else:
            walk.op(op)

    def _next(self, now: float) -> None:
        self.done[-1].end = now
        self.done.append(_Segment(self.number, now))

    def _hand_over(self, value: ir.Value) -> float:
        return cost.exchange_seconds(size_bytes(value), 0.0, self.member.device)

    def _message(self, op: ir.Operation) -> tuple[float, float]:
        """Seconds of the sender, and on the way; a processor moves the bytes itself."""
        value, device = op.operands[0], self.member.device
        link = self.member.cluster.link(device.name, symbol(op, "to"))
        bytes_ = size_bytes(value) / link.bandwidth
        own = 0.0 if device.overlaps else bytes_
        return self._hand_over(value) + own, link.latency + bytes_ - own


# --- all devices ---


@dataclass(frozen=True)
class Run:
    """A step of all devices."""

    timeline: Timeline
    costs: tuple[PlanCost, ...]

    @classmethod
    def of(cls, programs: Sequence[Program], members: Sequence[PlannedMember]) -> "Run":
        """Simulate it."""
        walks = [
            _Segments(number, member).program(program)
            for number, (program, member) in enumerate(
                zip(programs, members, strict=True)
            )
        ]
        timeline = simulate(list(_works([s for w in walks for s in w.done])))
        return cls(timeline, tuple(w.cost for w in walks))

    def cost(self) -> PlanCost:
        """Of the busiest device: what it does not compute, it waits."""
        busiest = max(self.costs, key=lambda found: found.compute)
        sent = max(found.sent for found in self.costs)
        waiting = max(0.0, self.timeline.length - busiest.compute)
        return PlanCost(busiest.compute, waiting, sent)


def _works(segments: Sequence[_Segment]) -> Iterator[TaskWork]:
    """The segments as the simulation takes them."""
    senders = {s.gives: n for n, s in enumerate(segments) if s.gives is not None}
    for s in segments:
        reads = () if s.needs is None else (senders[s.needs],)
        yield TaskWork(s.device, s.end - s.start, reads, s.travel)
