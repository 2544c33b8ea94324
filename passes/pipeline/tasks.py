"""The schedule form: a `pcp.schedule` of tasks for every part and microbatch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect import function_body, hlo
from pcp.dialect.attributes import On, unwrap
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import CAST, bundled, pack, unpack
from pcp.layout import Layout
from pcp.mesh import Mesh
from pcp.passes.core.functions import entry
from pcp.passes.core.rewriting import attributes
from pcp.passes.pipeline.flow import AXIS, FIXED, Flow
from pcp.passes.pipeline.microbatches import Separated
from pcp.passes.pipeline.parts import OPT, Key, StagePart, parts_of
from pcp.passes.pipeline.stages import Stages
from pcp.passes.sharding.partition import Member

Value = ir.Value


def on(type_: ir.Type, device: str) -> ir.Type:
    """`!pcp.on<type, @device>`."""
    return On.get(type_, ir.FlatSymbolRefAttr.get(device))


def build_schedule(
    function: ir.Operation, separated: Separated, stages: Stages, mesh: Mesh, axis: str
) -> ir.Operation:
    """Put a function that holds the schedules in the place of `function`.

    There is one for each place in the mesh apart from `axis`, along which the stages
    lie: what devices of one stage exchange stands inside of their tasks.
    """
    with ir.InsertionPoint(function), function.location:
        given = entry(function).arguments
        types, places = [a.type for a in given], [a.location for a in given]
        made, block = function_body.begin(attributes(function), types, places)
        with ir.InsertionPoint(block):
            parts = parts_of(stages)
            columns = [
                _Builder(separated, stages, parts, row, devices_of(mesh, axis, row))
                for row in separated.rows
            ]
            own = list(block.arguments)
            own += [own[k] for k in separated.whole]
            placed = [c.build(own) for c in columns]
            results = [
                cast([v for values in copies for v in values], value.type)
                for value, copies in zip(
                    stages.flow.results, zip(*placed, strict=True), strict=True
                )
            ]
        function_body.finish(made, results)
    function.erase()
    return made


def devices_of(mesh: Mesh, axis: str, row: dict[str, int]) -> list[str]:
    """The device of each stage at one place of the other axes."""
    return [
        device
        for place, device in zip(mesh.members, mesh.devices, strict=True)
        if {a: n for a, n in place.items() if a != axis} == row
    ]


def cast(values: Sequence[Value], type_: ir.Type) -> Value:
    """The values as one of another type: a whole as a part, or parts as their whole."""
    made = ir.Operation.create(CAST, results=[type_], operands=list(values))
    return made.results[0]


def yield_(values: Sequence[Value]) -> None:
    """`pcp.yield` of these."""
    ir.Operation.create("pcp.yield", operands=pack(values))


@dataclass
class _Builder:
    """Builds tasks and transfers of one column; knows where every value lies.

    A column is a device of each stage, all at one place of the other axes.
    """

    separated: Separated
    stages: Stages
    parts: dict[Key, StagePart]
    row: dict[str, int]
    devices: list[str]
    #: By argument and stage; by value and microbatch, as (placed, stage); by value
    #: and stage what is made for a result only, and what a stage makes only once.
    arguments: dict[tuple[Value, int], Value] = field(default_factory=dict)
    placed: dict[tuple[Value, int], tuple[Value, int]] = field(default_factory=dict)
    given: dict[tuple[Value, int], Value] = field(default_factory=dict)
    once: dict[tuple[Value, int], Value] = field(default_factory=dict)
    moved: dict[tuple[Value, int], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.count = self.separated.count
        self.last = self.count - 1

    @property
    def flow(self) -> Flow:
        return self.stages.flow

    def _member(self, microbatch: int) -> Member:
        separated = self.separated
        place = {**self.row, AXIS: microbatch}
        return Member(separated.mesh, place, separated.plan)

    def build(self, arguments: Sequence[Value]) -> list[list[Value]]:
        """Each result of the function, as it lies on the stages that deliver it."""
        own = self.flow.arguments
        wanted = sorted(
            {
                (own.index(v), self.stages.source_of(v, part.stage))
                for part in self.parts.values()
                for v in part.inputs
                if v not in self.flow.makers
            }
        )
        inputs = [
            cast([arguments[k]], on(self._device_type(own[k]), self.devices[stage]))
            for k, stage in wanted
        ]
        homes = self._result_homes()
        types = [on(self._device_type(v), self.devices[home]) for v, home in homes]
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
        found = iter(unpack(list(schedule.results)))
        return [[next(found) for _ in stages] for stages in self.stages.deliveries()]

    def _device_type(self, value: Value) -> ir.Type:
        """The type of what a device has of a value: of all microbatches."""
        shape = hlo.shape_of(value)
        layout = _between_devices(self.separated.plan.layouts[value])
        local = layout.local_shape(shape, self.separated.mesh, self.row)
        return hlo.tensor(local, hlo.element_type(value))

    # --- results ---

    def _result_homes(self) -> list[tuple[Value, int]]:
        """Each result with the stages it is delivered on."""
        deliveries = self.stages.deliveries()
        return [
            (value, stage)
            for value, stages in zip(self.flow.results, deliveries, strict=True)
            for stage in stages
        ]

    def _results(self) -> list[Value]:
        return [
            self.given[pair] if pair in self.given else self._at(*pair, OPT, 0)
            for pair in self._result_homes()
        ]

    # --- values on their way ---

    def _at(self, value: Value, stage: int, direction: str, microbatch: int) -> Value:
        """The value on a stage, for a task of a microbatch."""
        if value not in self.flow.makers:
            home = self.stages.source_of(value, stage)
            return self._moved(self.arguments[value, home], home, stage)
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
                for (_, direction, _), part in self.parts.items():
                    if direction in wanted:
                        self._task(part, microbatch)
        for (_, direction, _), part in self.parts.items():
            if direction == OPT:
                self._task(part, 0)

    def _task(self, part: StagePart, microbatch: int) -> None:
        """One task; its sums go on from those of the microbatch before."""
        stage, direction, _ = part.key
        member = self._member(microbatch)
        had = [v for v in part.shared if (v, stage) in self.once]
        new = [v for v in part.shared if (v, stage) not in self.once]
        inputs = [self._at(v, stage, direction, microbatch) for v in part.inputs]
        inputs += [self.once[v, stage] for v in had]
        settled = [self.flow.ops[n].results[0] for n in part.sums]
        before = [self.placed[v, self.last][0] for v in settled if microbatch]
        device = self.devices[stage]
        outputs = [*part.outputs, *new]
        types = [member.type_of(v) for v in (*outputs, *settled)]
        task = ir.Operation.create(
            "pcp.task",
            operands=pack([*inputs, *before]),
            results=bundled([on(t, device) for t in types]),
            regions=1,
            attributes=_facts(device, part.key, microbatch),
        )
        plain = [_plain(v) for v in (*inputs, *before)]
        with ir.InsertionPoint(task.regions[0].blocks.append(*plain)) as point:
            given = list(point.block.arguments)
            self._bind(member, [*part.inputs, *had], given)
            self._body(member, part, outputs, given[len(inputs) :])
        found = iter(unpack(list(task.results)))
        which = self.last if direction == OPT else microbatch
        for value, result in zip(part.outputs, found, strict=False):
            if self.flow.kind(value) in (None, FIXED):
                self.given[value, stage] = result
            else:
                self.placed[value, which] = result, stage
        for value, result in zip(new, found, strict=False):
            self.once[value, stage] = result
        for value, result in zip(settled, found, strict=True):
            self.placed[value, self.last] = result, stage

    def _bind(
        self, member: Member, values: Sequence[Value], given: Sequence[Value]
    ) -> None:
        for value, argument in zip(values, given, strict=False):
            member.values[value] = _own_part(member, value, argument)

    def _body(
        self,
        member: Member,
        part: StagePart,
        outputs: Sequence[Value],
        before: Sequence[Value],
    ) -> None:
        """The ops; yields `outputs`, then the sums so far, `before` with one more."""
        for number in part.ops:
            self._op(member, number)
        made = [self._read(member, v) for v in outputs]
        totals = before or [None] * len(part.sums)
        for number, total in zip(part.sums, totals, strict=True):
            summand = member.values[self.flow.ops[number].operands[0]]
            made.append(summand if total is None else hlo.add(total, summand))
        yield_(made)

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
    stage, direction, _ = key
    return {
        "device": ir.FlatSymbolRefAttr.get(device),
        "dir": ir.StringAttr.get(direction),
        "microbatch": hlo.i64(microbatch),
        "stage": hlo.i64(stage),
    }


def _plain(value: Value) -> ir.Type:
    """The tensor type of a placed value."""
    return unwrap(On(value.type).payload)


def _between_devices(layout: Layout) -> Layout:
    """The layout with all microbatches together."""
    return layout.without([AXIS])


def _own_part(member: Member, value: Value, given: Value) -> Value:
    """A microbatch's part of an argument that comes with all of them."""
    layout = member.plan.layouts[value]
    if AXIS not in layout.axes or not isinstance(value.owner, ir.Block):
        return given
    shape = hlo.shape_of(value)
    held = _between_devices(layout).slices(shape, member.mesh, member.place)
    part = layout.slices(shape, member.mesh, member.place)
    starts = [p.start - h.start for p, h in zip(part, held, strict=True)]
    limits = [p.stop - h.start for p, h in zip(part, held, strict=True)]
    return hlo.slice_(given, starts, limits)
