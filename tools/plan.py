"""What each device of a partitioned program holds, and what it says to the others.

Read from a bundle with a program for each device, or from the IR of one: modules of
devices, or a schedule of tasks. `plan_page` draws it; `pcp inspect` prints it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pcp.bundle import Bundle, Function, Manifest
from pcp.dialect.base import strings, symbol, text
from pcp.dialect.bindings import ir
from pcp.errors import ConfigError, counted
from pcp.manifest import tensor_bytes
from pcp.mesh import Mesh
from pcp.passes.functions import symbol_name
from pcp.passes.pipeline.wiring import Task, Wiring, schedules
from pcp.passes.rewriting import device_modules, functions
from pcp.passes.schedule import timeline
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.ports import port_shardings


@dataclass(frozen=True)
class Held:
    """A tensor's part on one device, bytes of the part."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    bytes: int


@dataclass(frozen=True)
class Exchange:
    """One collective of a device, in program order; bytes of its operands there."""

    function: str
    kind: str
    axes: tuple[str, ...]
    members: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Device:
    """One member of the mesh."""

    name: str
    place: dict[str, int]
    module: str
    held: tuple[Held, ...]
    exchanges: tuple[Exchange, ...]

    @property
    def bytes(self) -> int:
        """Of all tensors it is given."""
        return sum(tensor.bytes for tensor in self.held)


@dataclass(frozen=True)
class Box:
    """A task in the timeline; a forward takes 1, a backward what was assumed."""

    device: str
    direction: str
    microbatch: int
    stage: int
    start: float
    end: float


@dataclass(frozen=True)
class Plan:
    """A program over a mesh."""

    title: str
    mesh: Mesh
    devices: tuple[Device, ...]
    boxes: tuple[Box, ...] = ()
    bubble: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def totals(self) -> dict[tuple[str, ...], tuple[int, int]]:
        """For each set of axes: (collectives, bytes), of the busiest device."""
        found: dict[tuple[str, ...], tuple[int, int]] = {}
        for device in self.devices:
            own: dict[tuple[str, ...], list[int]] = {}
            for exchange in device.exchanges:
                own.setdefault(exchange.axes, []).append(exchange.bytes)
            for axes, sizes in own.items():
                most = max(found.get(axes, (0, 0))[1], sum(sizes))
                found[axes] = max(found.get(axes, (0, 0))[0], len(sizes)), most
        return found


# --- of a bundle ---


def of_bundle(bundle: Bundle, title: str) -> Plan:
    """The plan of a bundle; `ConfigError` when it is not spread over a mesh."""
    manifest = bundle.manifest
    if not manifest.programs:
        raise ConfigError(
            f"{title}: one program for every worker, spread over no mesh; compile it "
            "with --mesh dp=2 to have a plan"
        )
    mesh = manifest.partition_mesh()
    devices = tuple(
        Device(
            name,
            place,
            manifest.programs[name].module,
            tuple(_held_of(manifest, name)),
            tuple(_exchanges_of(manifest, name, mesh, place)),
        )
        for name, place in zip(mesh.devices, mesh.members, strict=True)
    )
    return Plan(title, mesh, devices)


def _held_of(manifest: Manifest, device: str) -> Iterator[Held]:
    """The inputs of all its functions, each name once."""
    seen: set[tuple[str, str]] = set()
    for name, function in manifest.programs[device].functions.items():
        whole = manifest.functions.get(name)
        for spec in function.inputs:
            if (spec.name, spec.role) in seen:
                continue
            seen.add((spec.name, spec.role))
            layout = _layout_in(whole, spec.name)
            yield Held(
                spec.name, spec.role, spec.dtype, spec.shape, layout, spec.nbytes
            )


def _layout_in(whole: Function | None, name: str) -> str:
    for spec in whole.inputs if whole else ():
        if spec.name == name:
            return str(spec.layout)
    return ""


def _exchanges_of(
    manifest: Manifest, device: str, mesh: Mesh, place: dict[str, int]
) -> Iterator[Exchange]:
    """In the order of the manifest's table, which is the program's."""
    for name, c in manifest.programs[device].collectives.items():
        axes = tuple(c.axes)
        kind = " ".join(filter(None, [c.kind, c.reduction]))
        yield Exchange(name, kind, axes, group(mesh, place, axes), c.bytes)


def group(mesh: Mesh, place: dict[str, int], axes: Sequence[str]) -> tuple[str, ...]:
    """The devices that differ from a member along `axes` only."""
    return tuple(
        device
        for device, other in zip(mesh.devices, mesh.members, strict=True)
        if all(other[axis] == place[axis] for axis in mesh.axes if axis not in axes)
    )


# --- of IR ---


def of_module(module: ir.Module, title: str) -> Plan:
    """The plan of a partitioned module or of scheduled tasks."""
    meshes = read_meshes(module)
    if len(meshes) != 1:
        raise ConfigError(f"{title}: a plan has exactly one pcp.mesh")
    mesh = next(iter(meshes.values()))
    homes = device_modules(module)
    if all(device in homes for device in mesh.devices):
        devices = tuple(
            _device(homes[name], name, mesh, place)
            for name, place in zip(mesh.devices, mesh.members, strict=True)
        )
        return Plan(title, mesh, devices)
    found = [schedules(f) for f in functions(module)]
    if not any(found):
        raise ConfigError(
            f"{title}: neither device modules nor a schedule; run "
            "--pcp-propagate-sharding --pcp-insert-reshards --pcp-partition first"
        )
    most = max(found, key=lambda own: sum(len(Wiring.read(s).tasks) for s in own))
    return _of_schedules(most, mesh, title)


def _device(home: ir.Operation, name: str, mesh: Mesh, place: dict[str, int]) -> Device:
    held: list[Held] = []
    exchanges: list[Exchange] = []
    for view in home.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == "func.func" and op.regions[0].blocks:
            held.extend(_arguments(op))
            exchanges.extend(_exchanges(op, mesh, place))
    return Device(name, place, name, tuple(held), tuple(exchanges))


def _arguments(function: ir.Operation) -> Iterator[Held]:
    arguments = list(function.regions[0].blocks[0].arguments)
    shardings = port_shardings(function, "arg_attrs", len(arguments))
    for i, (argument, sharding) in enumerate(zip(arguments, shardings, strict=True)):
        shape, dtype, size = _size(argument.type)
        layout = str(from_attribute(sharding)) if sharding is not None else ""
        name = _text(function, i, "pcp.name") or f"{symbol_name(function)}.{i}"
        role = _text(function, i, "pcp.role") or "data"
        yield Held(name, role, dtype, shape, layout, size)


def _text(function: ir.Operation, index: int, key: str) -> str:
    if "arg_attrs" not in function.attributes:
        return ""
    entry = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[index])
    return ir.StringAttr(entry[key]).value if key in entry else ""


def _size(type_: ir.Type) -> tuple[tuple[int, ...], str, int]:
    tensor = ir.RankedTensorType(type_)
    shape, dtype = tuple(tensor.shape), str(tensor.element_type)
    return shape, dtype, tensor_bytes(shape, dtype)


def _exchanges(
    function: ir.Operation, mesh: Mesh, place: dict[str, int]
) -> list[Exchange]:
    found: list[Exchange] = []
    name = symbol_name(function)

    def visit(op: ir.Operation) -> ir.WalkResult:
        inner = op.operation
        if inner.name in ("pcp.send", "pcp.recv"):
            found.append(_message(inner, name))
        elif inner.name.startswith("pcp.") and "axes" in inner.attributes:
            axes = tuple(strings(inner, "axes"))
            size = sum(_size(v.type)[2] for v in inner.operands)
            kind = inner.name.removeprefix("pcp.")
            if "kind" in inner.attributes:
                kind += f" {text(inner, 'kind')}"
            found.append(Exchange(name, kind, axes, group(mesh, place, axes), size))
        return ir.WalkResult.ADVANCE

    function.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def _message(op: ir.Operation, function: str) -> Exchange:
    is_send = op.name == "pcp.send"
    peer = symbol(op, "to" if is_send else "source")
    value = op.operands[0] if is_send else op.results[0]
    kind = "send" if is_send else "recv"
    return Exchange(function, kind, (), (peer,), _size(value.type)[2])


# --- of a schedule ---


def _of_schedules(schedules: Sequence[ir.Operation], mesh: Mesh, title: str) -> Plan:
    """The timeline of one function; its schedules are of different devices."""
    boxes, bubbles = [], []
    for schedule in schedules:
        wiring = Wiring.read(schedule)
        found = timeline(schedule, _cost(wiring))
        bubbles.append(found.bubble)
        times = zip(wiring.tasks, found.start, found.end, strict=True)
        boxes += [
            Box(task.device, task.direction, task.microbatch, task.stage, start, end)
            for task, start, end in times
        ]
    devices = tuple(
        Device(name, place, name, (), ())
        for name, place in zip(mesh.devices, mesh.members, strict=True)
    )
    kind = text(schedules[0], "kind")
    note = f"schedule {kind}; a backward task is taken to last as two forward ones"
    return Plan(title, mesh, devices, tuple(boxes), max(bubbles), (note,))


def _cost(wiring: Wiring) -> Callable[[Task], float]:
    """A backward task is as long as two forward ones, unless it is in halves."""
    cut = {task.stage for task in wiring.tasks if task.direction == "wgrad"}
    return lambda task: (
        2.0 if task.direction == "bwd" and task.stage not in cut else 1.0
    )


# --- as text ---


def lines(plan: Plan) -> Iterator[str]:
    """The plan as a person reads it in a terminal; equal devices share a line."""
    axes = ", ".join(f"{axis}={n}" for axis, n in plan.mesh.axes.items())
    yield f"plan        {counted(len(plan.devices), 'device')} over {axes}"
    for names, device in alike(plan.devices):
        sent = sum(e.bytes for e in device.exchanges)
        who = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
        yield (
            f"  {who} ({len(names)})  module {device.module}, holds "
            f"{bytes_text(device.bytes)}, {len(device.exchanges)} collectives with "
            f"{bytes_text(sent)}"
        )
    for axes_, (count, size) in plan.totals().items():
        over = ",".join(axes_) or "messages"
        yield f"  over {over}: {count} a device, {bytes_text(size)}"


def alike(devices: Sequence[Device]) -> list[tuple[list[str], Device]]:
    """Devices that hold and exchange the same amounts, in order of the first."""
    groups: dict[tuple, tuple[list[str], Device]] = {}
    for device in devices:
        facts = (
            device.module,
            tuple((h.name, h.shape) for h in device.held),
            tuple((e.kind, e.axes, e.bytes) for e in device.exchanges),
        )
        groups.setdefault(facts, ([], device))[0].append(device.name)
    return list(groups.values())


def bytes_text(count: int) -> str:
    """`349241` as `341.1 KiB`."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
