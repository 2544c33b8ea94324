"""pcp-lower-schedule: tasks become one program for each device."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect import function_body, hlo
from pcp.dialect.attributes import On, unwrap
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import CAST
from pcp.dialect.host import host_functions
from pcp.dialect.inlining import remap
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import (
    argument_attributes,
    entry,
    result_attributes,
    set_argument_attributes,
    set_result_attributes,
    symbol_name,
)
from pcp.passes.core.marks import SETTLED
from pcp.passes.core.rewriting import HOLD, attributes, functions, refuse
from pcp.passes.core.walk import returned
from pcp.passes.pipeline.bodies import declare, prepare_bodies
from pcp.passes.pipeline.wiring import (
    ARGUMENT,
    Source,
    Wiring,
    devices_of,
    plain,
    result_devices,
    schedules,
)
from pcp.passes.sharding.mesh import Mesh, only_mesh
from pcp.passes.sharding.partition import home_of

Value = ir.Value

#: Tasks whose results are not all sent: most are summands of gradients.
BACKWARD = ("bwd", "wgrad")


@dataclass(frozen=True)
class LowerSchedule(Pass):
    """Turn functions of scheduled tasks into `module @<device> {...}` for each device.

    Assumes that every function holds `pcp.schedule`s, as pcp-stage and pcp-schedule
    leave them, and a device is in one of them. A device's function has the arguments
    its tasks read and the results they give, with their attributes. Its tasks stand in
    the order of the schedule; what another device reads is sent right behind the task
    that makes it and received right before the first that reads it, on a channel of
    its own. A barrier in front of a message holds what backward tasks made since the
    last one: a compiler goes by values, and would put all of them off to the end.
    Leaves no task, transfer or schedule. A task's body is StableHLO, or ops of `arith`,
    `linalg`, `math` and `tensor` on tensors, which go through unread. Functions that it
    calls are inlined; the host's (`pcp.host`) are declared for each device.

    Before:

        %b = "pcp.task"(%a) ({...}) {device = @d0, dir = "fwd", ...}
        %c = "pcp.transfer"(%b) : (!pcp.on<T, @d0>) -> !pcp.on<T, @d1>
        %d = "pcp.task"(%c) ({...}) {device = @d1, dir = "fwd", ...}

    After:

        module @d0 { ... "pcp.send"(%b) {channel = 1, to = @d1} ... }
        module @d1 { ... %c = "pcp.recv"() {channel = 1, source = @d0} ... }
    """

    name = "pcp-lower-schedule"

    def run(self, module: ir.Module) -> None:
        """Replace the functions by one module a device."""
        with module.context:
            mesh = only_mesh(module)
            prepare_bodies(module, functions(module))
            whole = list(functions(module))
            known = host_functions(module)
            channels = Channels()
            plans = [_plans(function, channels) for function in whole]
            for plan in (plan for found in plans for plan in found):
                plan.check(mesh.devices)
            for device in mesh.devices:
                block = home_of(module, device)
                for found in plans:
                    own = [plan for plan in found if device in plan.devices]
                    _refuse_several(own, device)
                    plan = (own or found)[0]  # without one, it has nothing to do
                    with ir.InsertionPoint(block), plan.function.location:
                        _Device(plan, device).build()
                declare(block, known)
            for function in (*whole, *known.values()):
                function.erase()
            _name_devices(module, mesh)


def _refuse_several(own: "Sequence[_Plan]", device: str) -> None:
    """A device has the tasks of one schedule: another's would be left out."""
    if len(own) > 1:
        refuse(
            own[1].wiring.schedule,
            f"it has tasks or values on @{device}, which is in another pcp.schedule of "
            "its function; write the tasks of a device in one",
        )


def _name_devices(module: ir.Module, mesh: Mesh) -> None:
    """The mesh lists its devices, which sends and receives name."""
    listed = ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(d) for d in mesh.devices])
    for view in module.body.operations:
        op = view.operation
        if op.name == "pcp.mesh" and symbol_name(op) == mesh.name:
            op.attributes["devices"] = listed


@dataclass
class Channels:
    """A number for each value that goes to each device."""

    next: int = 1

    def new(self) -> int:
        """The next number; 0 is left to collectives."""
        self.next += 1
        return self.next - 1


def _plans(function: ir.Operation, channels: Channels) -> "list[_Plan]":
    """One for each schedule of a function."""
    found = schedules(function)
    if not found:
        refuse(function, "holds no pcp.schedule; run pcp-stage first")
    return [_Plan.read(function, schedule, channels) for schedule in found]


@dataclass
class _Plan:
    """What is the same for all devices of one schedule."""

    function: ir.Operation
    wiring: Wiring
    #: The function's argument behind each of the schedule's.
    arguments: list[int] = field(default_factory=list)
    #: The device of each of the schedule's results.
    homes: list[str] = field(default_factory=list)
    #: For each result of the function, which of the schedule's it is made of.
    results: list[list[int]] = field(default_factory=list)
    channels: dict[tuple[Source, str], int] = field(default_factory=dict)

    @classmethod
    def read(
        cls, function: ir.Operation, schedule: ir.Operation, channels: Channels
    ) -> "_Plan":
        plan = cls(function, Wiring.read(schedule))
        plan.homes = result_devices(schedule)
        plan.arguments = [plan._argument(v) for v in plan.wiring.given]
        plan.results = [plan._result(v) for v in returned(entry(function)).operands]
        for task in plan.wiring.tasks:
            for source in task.reads:
                plan._channel(source, task.device, channels)
        for source, device in zip(plan.wiring.results, plan.homes, strict=True):
            plan._channel(source, device, channels)
        return plan

    @property
    def devices(self) -> set[str]:
        """Those that the schedule is for."""
        return devices_of(self.wiring.schedule)

    def check(self, devices: Sequence[str]) -> None:
        """All that it is for are there: nothing else would do their tasks."""
        if lost := self.devices - set(devices):
            there = ", ".join(f"@{device}" for device in devices)
            refuse(
                self.wiring.schedule,
                f"it has tasks or values on @{min(lost)}, and the mesh is over {there}",
            )

    def _argument(self, value: Value) -> int:
        """Which argument of the function is placed here."""
        maker = value.owner
        if not isinstance(maker, ir.Block) and maker.operation.name == CAST:
            value = _cast_from(value, maker.operation)
        if not isinstance(value.owner, ir.Block):
            refuse(self.function, "computes something outside of its pcp.schedule")
        return ir.BlockArgument(value).arg_number

    def _result(self, value: Value) -> list[int]:
        """Which results of the schedule the function returns here."""
        if isinstance(value.owner, ir.Block):
            refuse(self.function, "returns what is no result of its pcp.schedule")
        maker = value.owner.operation
        if maker == self.wiring.schedule:
            return [list(maker.results).index(value)]
        if maker.name == "pcp.schedule":  # of other devices
            return []
        if maker.name != CAST:
            refuse(self.function, "returns what is no result of its pcp.schedule")
        if len(maker.results) == len(maker.operands):  # each from its own
            return self._result(_cast_from(value, maker))
        if len(maker.results) > 1:  # a tuple taken apart
            ours = maker.operands[0].owner == self.wiring.schedule
            return [list(maker.results).index(value)] if ours else []
        return [k for v in maker.operands for k in self._result(v)]

    def _channel(self, source: Source, device: str, channels: Channels) -> None:
        key = source, device
        if self.wiring.device(source) != device and key not in self.channels:
            self.channels[key] = channels.new()

    def receivers(self, source: Source) -> list[tuple[str, int]]:
        """The devices that a value is sent to, with their channels."""
        return [(to, n) for (what, to), n in self.channels.items() if what == source]


def _cast_from(value: Value, cast: ir.Operation) -> Value:
    """What a result of a cast is made of, where each has an operand of its own."""
    if len(cast.operands) != len(cast.results):
        refuse(cast, "it places several values as one, or one as several")
    return cast.operands[list(cast.results).index(value)]


@dataclass
class _Device:
    """Builds one function for one device, at the current insertion point."""

    plan: _Plan
    device: str
    values: dict[Source, Value] = field(default_factory=dict)
    #: What was made backwards since the last message, for nobody else.
    waiting: list[Source] = field(default_factory=list)

    @property
    def wiring(self) -> Wiring:
        return self.plan.wiring

    def build(self) -> None:
        """The function, with the ports that the device has."""
        source = self.plan.function
        wanted = self._arguments()
        ports = entry(source).arguments
        said = attributes(source)
        kept = {k: said[k] for k in said if k not in ("arg_attrs", "res_attrs")}
        types = [self._argument_type(k) for k in wanted]
        places = [ports[k].location for k in wanted]
        made, block = function_body.begin(kept, types, places)
        self._bind(dict(zip(wanted, block.arguments, strict=True)))
        with ir.InsertionPoint(block):
            self._tasks()
            results = self._results()
        function_body.finish(made, [v for _, v in results])
        given, gives = argument_attributes(source), result_attributes(source)
        set_argument_attributes(made, [given[k] for k in wanted])
        set_result_attributes(made, [gives[k] for k, _ in results])

    def _arguments(self) -> list[int]:
        """The function's arguments that the device reads or sends, in order."""
        read = {source for task in self.wiring.tasks for source in task.reads}
        read.update(self.wiring.results)
        return sorted(
            {
                self.plan.arguments[k]
                for task, k in read
                if task == ARGUMENT and self.wiring.arguments[k] == self.device
            }
        )

    def _argument_type(self, number: int) -> ir.Type:
        """The type of what the device has of the function's argument."""
        k = next(
            k
            for k, device in enumerate(self.wiring.arguments)
            if device == self.device and self.plan.arguments[k] == number
        )
        return self._type((ARGUMENT, k))

    def _bind(self, given: dict[int, Value]) -> None:
        for k, device in enumerate(self.wiring.arguments):
            if device == self.device and self.plan.arguments[k] in given:
                self.values[ARGUMENT, k] = given[self.plan.arguments[k]]

    def _tasks(self) -> None:
        for source in list(self.values):
            self._send(source)
        for number, task in enumerate(self.wiring.tasks):
            if task.device != self.device:
                continue
            with task.op.location:
                for source in task.reads:
                    self._read(source)  # which may hold others behind a barrier
                given = [self.values[source] for source in task.reads]
                found = inlined(task.op, given)
                for k, value in enumerate(found):
                    self.values[number, k] = value
                    self._send((number, k))
                made = [(number, k) for k in range(len(found))]
                self.waiting = [s for s in self.waiting if s not in task.reads]
                if task.direction in BACKWARD:
                    self.waiting += [s for s in made if not self.plan.receivers(s)]

    def _send(self, source: Source) -> None:
        receivers = self.plan.receivers(source)
        if receivers and self.waiting:
            self._settle([source])
        for to, channel in receivers:
            ir.Operation.create(
                "pcp.send",
                operands=[self.values[source]],
                attributes={
                    "channel": hlo.i64(channel),
                    "to": ir.FlatSymbolRefAttr.get(to),
                },
            )

    def _settle(self, sources: Sequence[Source] = ()) -> None:
        """Have done what waits, before these are sent or something is received."""
        together = list(dict.fromkeys([*sources, *self.waiting]))
        values = [self.values[s] for s in together]
        held = ir.Operation.create(
            HOLD,
            operands=values,
            results=[v.type for v in values],
            attributes={} if sources else {SETTLED: ir.UnitAttr.get()},
        )
        self.values.update(zip(together, held.results, strict=True))
        self.waiting.clear()

    def _read(self, source: Source) -> Value:
        """A value of the device's, or one that it receives now."""
        if source not in self.values:
            key = source, self.device
            home = self.wiring.device(source)
            if self.waiting:
                self._settle()
            self.values[source] = ir.Operation.create(
                "pcp.recv",
                results=[self._type(source)],
                attributes={
                    "channel": hlo.i64(self.plan.channels[key]),
                    "source": ir.FlatSymbolRefAttr.get(home),
                },
            ).results[0]
        return self.values[source]

    def _type(self, source: Source) -> ir.Type:
        task, k = source
        if task == ARGUMENT:
            return unwrap(On(self.wiring.given[k].type).payload)
        body = self.wiring.tasks[task].op.regions[0].blocks[0]
        return plain(list(returned(body).operands))[k].type

    def _results(self) -> list[tuple[int, Value]]:
        """(position in the whole function, value) of the device's results."""
        devices = self.plan.homes
        return [
            (position, self._read(self.wiring.results[k]))
            for position, own in enumerate(self.plan.results)
            for k in own
            if devices[k] == self.device
        ]


def inlined(task: ir.Operation, given: Sequence[Value]) -> list[Value]:
    """The task's body at the current insertion point; what it yields."""
    block = task.regions[0].blocks[0]
    values = dict(zip(block.arguments, given, strict=True))
    end = returned(block)
    outputs = plain(list(end.operands))
    packs = {v.owner.operation for v in end.operands if v not in outputs}
    for view in block.operations:
        op = view.operation
        if op == end or op in packs:
            continue
        copy = op.clone()
        copy.operation.walk(lambda inner: remap(inner, values))
        values.update(zip(op.results, copy.operation.results, strict=True))
    return [values[v] for v in outputs]
