"""The schedule form: a `pcp.schedule` of tasks for every part and microbatch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect import hlo
from pcp.dialect.attributes import On, unwrap
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import CAST, bundled, pack, unpack
from pcp.passes.functions import entry
from pcp.passes.partition import Member
from pcp.passes.pipeline.flow import FIXED, Flow
from pcp.passes.pipeline.microbatches import Separated
from pcp.passes.pipeline.parts import OPT, Key, Part, parts_of
from pcp.passes.pipeline.stages import Stages
from pcp.passes.rewriting import attributes

Value = ir.Value


def on(type_: ir.Type, device: str) -> ir.Type:
    """`!pcp.on<type, @device>`."""
    return On.get(type_, ir.FlatSymbolRefAttr.get(device))


def build_schedule(
    function: ir.Operation, separated: Separated, stages: Stages, devices: Sequence[str]
) -> ir.Operation:
    """Put a function that holds the schedule in the place of `function`."""
    with ir.InsertionPoint(function), function.location:
        made = ir.Operation.create(
            "func.func", regions=1, attributes=attributes(function)
        )
        given = entry(function).arguments
        block = made.regions[0].blocks.append(
            *(a.type for a in given), arg_locs=[a.location for a in given]
        )
        with ir.InsertionPoint(block):
            builder = _Builder(separated, stages, list(devices))
            results = builder.build(list(block.arguments))
            ir.Operation.create("func.return", operands=results)
    function.erase()
    return made


def cast(value: Value, type_: ir.Type) -> Value:
    """The value as another type of the same thing."""
    return ir.Operation.create(CAST, results=[type_], operands=[value]).results[0]


def yield_(values: Sequence[Value]) -> None:
    """`pcp.yield` of these."""
    ir.Operation.create("pcp.yield", operands=pack(values))


@dataclass
class _Builder:
    """Builds tasks and transfers; knows where every value lies."""

    separated: Separated
    stages: Stages
    devices: list[str]
    #: By argument and stage, then by value and microbatch, as (placed, stage).
    arguments: dict[tuple[Value, int], Value] = field(default_factory=dict)
    placed: dict[tuple[Value, int], tuple[Value, int]] = field(default_factory=dict)
    moved: dict[tuple[Value, int], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts = parts_of(self.stages)
        self.count = self.separated.mesh.size
        self.last = self.count - 1

    @property
    def flow(self) -> Flow:
        return self.stages.flow

    def build(self, arguments: Sequence[Value]) -> list[Value]:
        """The function's results, from its arguments."""
        own = self.flow.arguments
        wanted = sorted(
            {
                (own.index(v), part.stage)
                for part in self.parts.values()
                for v in part.inputs
                if v not in self.flow.makers
            }
        )
        inputs = [
            cast(arguments[k], on(arguments[k].type, self.devices[stage]))
            for k, stage in wanted
        ]
        homes = [stage for _, stage in self._result_homes()]
        types = [
            on(v.type, self.devices[home])
            for v, home in zip(self.flow.results, homes, strict=True)
        ]
        schedule = ir.Operation.create(
            "pcp.schedule",
            operands=pack(inputs),
            results=bundled(types),
            regions=1,
            attributes={
                "kind": ir.StringAttr.get("custom"),
                "microbatches": hlo.i64(self.count),
            },
        )
        block = schedule.regions[0].blocks.append(*(v.type for v in inputs))
        keys = [(own[k], stage) for k, stage in wanted]
        self.arguments.update(zip(keys, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            self._tasks()
            yield_(self._results())
        found = unpack(list(schedule.results))
        plain = [v.type for v in self.flow.results]
        return [cast(v, t) for v, t in zip(found, plain, strict=True)]

    # --- results ---

    def _result_homes(self) -> list[tuple[Value, int]]:
        """Each result with the stage it is delivered on."""
        homes = []
        for value, owner in zip(self.flow.results, self.stages.owners(), strict=True):
            made = self.stages.of_value(value)
            known = made if made is not None else 0
            homes.append((value, known if owner is None else owner))
        return homes

    def _results(self) -> list[Value]:
        return [self._at(value, stage, OPT, 0) for value, stage in self._result_homes()]

    # --- values on their way ---

    def _at(self, value: Value, stage: int, direction: str, microbatch: int) -> Value:
        """The value on a stage, for a task of a microbatch."""
        if value not in self.flow.makers and (value, stage) in self.arguments:
            if direction != OPT or (value, self.last) not in self.placed:
                return self.arguments[value, stage]
        which = self.last if direction == OPT else microbatch
        found, home = self.placed[value, which]
        return self._moved(found, home, stage)

    def _moved(self, value: Value, home: int, stage: int) -> Value:
        if home == stage:
            return value
        key = (value, stage)
        if key not in self.moved:
            target = on(_plain(value), self.devices[stage])
            self.moved[key] = ir.Operation.create(
                "pcp.transfer", operands=[value], results=[target]
            ).results[0]
        return self.moved[key]

    # --- tasks ---

    def _tasks(self) -> None:
        """For every microbatch up, then for every one down, then what runs once."""
        for wanted in (("fwd",), ("bwd", "wgrad")):
            for microbatch in range(self.count):
                for (_, direction), part in self.parts.items():
                    if direction in wanted:
                        self._task(part, microbatch)
        for (_, direction), part in self.parts.items():
            if direction == OPT:
                self._task(part, 0)

    def _task(self, part: Part, microbatch: int) -> None:
        """One task; its sums go on from those of the microbatch before."""
        stage, direction = part.key
        member = Member(
            self.separated.mesh,
            self.separated.mesh.members[microbatch],
            self.separated.plan,
        )
        inputs = [self._at(v, stage, direction, microbatch) for v in part.inputs]
        settled = [self.flow.ops[n].results[0] for n in part.sums]
        before = [self.placed[v, self.last][0] for v in settled if microbatch]
        device = self.devices[stage]
        types = [member.type_of(v) for v in part.outputs] + [v.type for v in settled]
        task = ir.Operation.create(
            "pcp.task",
            operands=pack([*inputs, *before]),
            results=bundled([on(t, device) for t in types]),
            regions=1,
            attributes=_facts(device, part.key, microbatch),
        )
        self._body(task, part, member, [*inputs, *before])
        found = unpack(list(task.results))
        which = self.last if direction == OPT else microbatch
        for value, result in zip(part.outputs, found, strict=False):
            self.placed[value, which] = result, stage
        for value, result in zip(settled, found[len(part.outputs) :], strict=True):
            self.placed[value, self.last] = result, stage

    def _body(
        self, task: ir.Operation, part: Part, member: Member, given: Sequence[Value]
    ) -> None:
        plain = [_plain(v) for v in given]
        block = task.regions[0].blocks.append(*plain)
        count = len(part.inputs)
        with ir.InsertionPoint(block):
            for value, argument in zip(part.inputs, block.arguments, strict=False):
                member.values[value] = _own_part(member, value, argument)
            for number in part.ops:
                self._op(member, number)
            outputs = [self._read(member, v) for v in part.outputs]
            before = list(block.arguments)[count:] or [None] * len(part.sums)
            for number, total in zip(part.sums, before, strict=True):
                summand = member.values[self.flow.ops[number].operands[0]]
                outputs.append(summand if total is None else hlo.add(total, summand))
            yield_(outputs)

    def _op(self, member: Member, number: int) -> None:
        op = self.flow.ops[number]
        for value in self.flow.reads[number]:
            self._read(member, value)
        with op.location:
            results = member.op(op)
        member.values.update(zip(op.results, results, strict=True))

    def _read(self, member: Member, value: Value) -> Value:
        """The value in a task; a fixed one is made there."""
        if value not in member.values:
            assert self.flow.kind(value) == FIXED, (
                "a part reads what it has no input for"
            )
            self._op(member, self.flow.makers[value])
        return member.values[value]


def _facts(device: str, key: Key, microbatch: int) -> dict[str, ir.Attribute]:
    stage, direction = key
    return {
        "device": ir.FlatSymbolRefAttr.get(device),
        "dir": ir.StringAttr.get(direction),
        "microbatch": hlo.i64(microbatch),
        "stage": hlo.i64(stage),
    }


def _plain(value: Value) -> ir.Type:
    """The tensor type of a placed value."""
    return unwrap(On(value.type).payload)


def _own_part(member: Member, value: Value, given: Value) -> Value:
    """A microbatch's part of an argument that comes whole."""
    layout = member.plan.layouts[value]
    shape = hlo.shape_of(value)
    if not any(layout.dims) or hlo.shape_of(given) != shape:
        return given
    part = layout.slices(shape, member.mesh, member.place)
    return hlo.slice_(given, [s.start for s in part], [s.stop for s in part])
