"""The plan of a program in IR: modules of devices, or a schedule of tasks."""

from collections.abc import Callable, Iterator, Sequence

from pcp.dialect.base import strings, symbol, text
from pcp.dialect.bindings import ir
from pcp.errors import ConfigError
from pcp.manifest import tensor_bytes
from pcp.mesh import Mesh
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import device_modules, functions
from pcp.passes.pipeline.schedule import timeline
from pcp.passes.pipeline.wiring import Task, Wiring, schedules
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.ports import port_shardings
from pcp.tools.pages.plan import Box, Device, DevicePlan, Exchange, Held, group


def of_module(module: ir.Module, title: str) -> DevicePlan:
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
        return DevicePlan(title, mesh, devices)
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
            held.extend(_arguments(op, mesh))
            exchanges.extend(_exchanges(op, mesh, place))
    return Device(name, place, name, tuple(held), tuple(exchanges))


def _arguments(function: ir.Operation, mesh: Mesh) -> Iterator[Held]:
    arguments = list(function.regions[0].blocks[0].arguments)
    shardings = port_shardings(function, "arg_attrs", len(arguments))
    for i, (argument, sharding) in enumerate(zip(arguments, shardings, strict=True)):
        shape, dtype, size = _size(argument.type)
        found = None if sharding is None else from_attribute(sharding)
        layout = "" if found is None else str(found)
        cuts = () if found is None else tuple(map(mesh.count, found.dims))
        name = _text(function, i, "pcp.name") or f"{symbol_name(function)}.{i}"
        role = _text(function, i, "pcp.role") or "data"
        yield Held(name, role, dtype, shape, layout, size, cuts)


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


def _of_schedules(
    schedules: Sequence[ir.Operation], mesh: Mesh, title: str
) -> DevicePlan:
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
    return DevicePlan(title, mesh, devices, tuple(boxes), max(bubbles), (note,))


def _cost(wiring: Wiring) -> Callable[[Task], float]:
    """A backward task is as long as two forward ones, unless it is in halves."""
    cut = {task.stage for task in wiring.tasks if task.direction == "wgrad"}
    return lambda task: (
        2.0 if task.direction == "bwd" and task.stage not in cut else 1.0
    )
