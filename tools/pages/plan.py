"""What each device of a partitioned program holds, and what it says to the others.

Read from a bundle with a program for each device; `plan_of_ir` reads it from the IR of
one. `plan_page` draws it; `pcp inspect` prints it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pcp.bundle import Bundle, Manifest
from pcp.errors import ConfigError, counted
from pcp.mesh import Mesh
from pcp.passes.core.sizes import bytes_text
from pcp.tools.pages.program_lines import Tensor, reads


@dataclass(frozen=True)
class Held:
    """A tensor's part on one device, bytes of the part.

    `cuts` is into how many parts each dimension is cut; `line` where the program first
    reads it, if that is known.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    bytes: int
    cuts: tuple[int, ...] = ()
    line: str = ""


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
class DevicePlan:
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


def of_bundle(bundle: Bundle, title: str) -> DevicePlan:
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
            tuple(_held_of(manifest, name, mesh, reads(bundle, name))),
            tuple(_exchanges_of(manifest, name, mesh, place)),
        )
        for name, place in zip(mesh.devices, mesh.members, strict=True)
    )
    return DevicePlan(title, mesh, devices)


def _held_of(
    manifest: Manifest, device: str, mesh: Mesh, lines: Mapping[Tensor, str]
) -> Iterator[Held]:
    """The inputs of all its functions, each name once."""
    seen: set[tuple[str, str]] = set()
    for name, function in manifest.programs[device].functions.items():
        whole = manifest.functions.get(name)
        for spec in function.inputs:
            if (spec.name, spec.role) in seen:
                continue
            seen.add((spec.name, spec.role))
            layout, cuts = "", ()
            for given in whole.inputs if whole else ():
                if given.name == spec.name:
                    layout = str(given.layout)
                    cuts = tuple(map(mesh.count, given.layout.dims))
            yield Held(
                name=spec.name,
                role=spec.role,
                dtype=spec.dtype,
                shape=spec.shape,
                layout=layout,
                bytes=spec.nbytes,
                cuts=cuts,
                line=lines.get((spec.role, spec.name), ""),
            )


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


# --- as text ---


def lines(plan: DevicePlan) -> Iterator[str]:
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
