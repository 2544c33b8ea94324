"""A `pcp.schedule` read back: its tasks in order, and where each value comes from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect.attributes import On
from pcp.dialect.base import integer, symbol, text
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import CAST, types_of
from pcp.passes.core.rewriting import refuse

Value = ir.Value

#: The number of the task that gives a value, and which of its results it is. An
#: argument of the schedule comes from task `ARGUMENT`.
Source = tuple[int, int]
ARGUMENT = -1


@dataclass(frozen=True)
class Task:
    """One `pcp.task`, and the sources of what it reads."""

    op: ir.Operation
    device: str
    stage: int
    microbatch: int
    direction: str
    reads: tuple[Source, ...]


@dataclass
class Wiring:
    """The tasks of a schedule in their order, and the sources of its results."""

    schedule: ir.Operation
    tasks: list[Task] = field(default_factory=list)
    results: list[Source] = field(default_factory=list)
    #: What the schedule is given: its operands, then what it reads from around it.
    given: list[Value] = field(default_factory=list)
    #: The device that each of these lies on.
    arguments: list[str] = field(default_factory=list)
    _sources: dict[Value, Source] = field(default_factory=dict)
    _tuples: dict[Value, list[Source]] = field(default_factory=dict)

    @classmethod
    def read(cls, schedule: ir.Operation) -> "Wiring":
        """Follow every value through casts and transfers."""
        wiring = cls(schedule, given=plain(list(schedule.operands)))
        block = schedule.regions[0].blocks[0]
        for k, argument in enumerate(block.arguments):
            wiring.arguments.append(device_of(argument.type))
            wiring._sources[argument] = ARGUMENT, k
        for view in block.operations:
            wiring._add(view.operation)
        return wiring

    def _add(self, op: ir.Operation) -> None:
        given = self._expand(op.operands)
        match op.name:
            case "pcp.task":
                self._task(op, given)
            case "pcp.transfer":
                self._sources[op.results[0]] = given[0]
            case "pcp.yield":
                self.results = given
            case name if name == CAST:
                self._give(op, given)

    def _task(self, op: ir.Operation, given: list[Source]) -> None:
        number = len(self.tasks)
        missing = [name for name in ("stage", "microbatch", "dir") if not has(op, name)]
        if missing and text(self.schedule, "kind") != "custom":
            refuse(
                op,
                f"a scheduled task says its {', '.join(missing)}; one whose place is "
                'its order alone stands in a schedule of kind = "custom"',
            )
        self.tasks.append(
            Task(
                op,
                symbol(op, "device"),
                integer(op, "stage"),
                integer(op, "microbatch"),
                text(op, "dir") if has(op, "dir") else "fwd",
                tuple(given),
            )
        )
        *_, end = op.regions[0].blocks[0].operations
        count = len(plain(end.operation.operands))
        self._give(op, [(number, k) for k in range(count)])

    def _give(self, op: ir.Operation, sources: list[Source]) -> None:
        """The op's results stand for these, one each or all in a tuple."""
        results = list(op.results)
        if len(results) == 1 and isinstance(results[0].type, ir.TupleType):
            self._tuples[results[0]] = sources
            return
        self._sources.update(zip(results, sources, strict=True))

    def _expand(self, values: Sequence[Value]) -> list[Source]:
        found: list[Source] = []
        for value in values:
            if value in self._tuples:
                found.extend(self._tuples[value])
            else:
                found.append(self._source(value))
        return found

    def _source(self, value: Value) -> Source:
        """Where a value comes from; one from around the schedule is given to it."""
        if value not in self._sources:
            self._sources[value] = ARGUMENT, len(self.given)
            self.given.append(value)
            self.arguments.append(device_of(value.type))
        return self._sources[value]

    def device(self, source: Source) -> str:
        """Where a source is made."""
        task, k = source
        return self.arguments[k] if task == ARGUMENT else self.tasks[task].device


def has(op: ir.Operation, name: str) -> bool:
    """Whether the op has the attribute."""
    return name in op.attributes


def device_of(type_: ir.Type) -> str:
    """The device in `!pcp.on<T, @device>`."""
    return ir.FlatSymbolRefAttr(On(type_).device).value


def plain(values: Sequence[Value]) -> list[Value]:
    """Single values, those of a tuple made by a cast taken apart."""
    if len(values) != 1 or not isinstance(values[0].type, ir.TupleType):
        return list(values)
    maker = values[0].owner
    if isinstance(maker, ir.Block) or maker.operation.name != CAST:
        return list(values)
    return list(maker.operation.operands)


def devices_of(schedule: ir.Operation) -> set[str]:
    """Those that a schedule is for."""
    wiring = Wiring.read(schedule)
    tasks = (task.device for task in wiring.tasks)
    return {*wiring.arguments, *tasks, *result_devices(schedule)}


def result_devices(schedule: ir.Operation) -> list[str]:
    """Where each of a schedule's results lies."""
    *_, end = schedule.regions[0].blocks[0].operations
    return [device_of(type_) for type_ in types_of(end.operation.operands)]


def schedules(function: ir.Operation) -> list[ir.Operation]:
    """The `pcp.schedule` ops of a function."""
    return [
        view.operation
        for view in function.regions[0].blocks[0].operations
        if view.operation.name == "pcp.schedule"
    ]
