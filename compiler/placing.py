"""A mesh that was asked for over a described cluster: who is where, and whose share.

`--mesh dp=2,tp=2` leaves open which device has which place, and how unequal devices
share the batch. Both are decided as the planner decides them, by what each device makes
of the program's forward (`passes/planning`): devices that are alike lie side by side,
since a row of "dp" is as fast as its slowest member, and rows share the batch so that
all end together. What the cluster says and this mesh cannot use is reported. Over
devices that are alike nothing changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pcp.compiler.emission import copy
from pcp.compiler.sharding_file import BATCH_AXIS
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.mesh import Mesh
from pcp.passes.core.functions import symbol_name
from pcp.passes.planning import plan
from pcp.passes.planning.candidates import alike
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.split_batch import SplitBatch, cut_sizes, mesh_op

#: The mesh axis whose members are pipeline stages.
PIPELINE = "pp"


@dataclass(frozen=True)
class Unequal:
    """Devices of a mesh that are not alike: forwards a second of each, by name."""

    mesh: Mesh
    rates: Mapping[str, float]
    hosts: Mapping[str, str]

    def rows(self, devices: tuple[str, ...]) -> list[list[str]]:
        """The devices at each place of "dp", where `devices` fill the mesh."""
        rows: list[list[str]] = [[] for _ in range(self.mesh.axes[BATCH_AXIS])]
        for place, device in zip(self.mesh.members, devices, strict=True):
            rows[place[BATCH_AXIS]].append(device)
        return rows

    def placed(self) -> tuple[str, ...]:
        """The devices in the order of the mesh: those of a row are as alike as can be.

        Those of a host stay together, the fastest first, as in the planner's meshes.
        """
        if self.mesh.axes[BATCH_AXIS] == self.mesh.size:
            return self.mesh.devices
        order = sorted(self.rates, key=lambda d: (self.hosts[d], -self.rates[d]))
        members = self.mesh.members
        by_row = sorted(range(len(members)), key=lambda i: members[i][BATCH_AXIS])
        found = dict(zip(by_row, order, strict=True))
        return tuple(found[i] for i in range(len(members)))

    def slowest(self, row: list[str]) -> float:
        """What a row makes: all wait for the last of it."""
        return min(self.rates[device] for device in row)


def tell_idle(devices: list[str], say: Callable[[str], None]) -> None:
    """Say which devices of a cluster are more than the mesh has places."""
    if devices:
        say(f"{', '.join(devices)} of the cluster: in no place of the mesh, and idle")


def place(module: ir.Module, mesh: Mesh, func: str, say: Callable[[str], None]) -> Mesh:
    """Write on an annotated program's mesh who is where and who takes how much.

    `say` is called with what was decided, and with what cannot be used.
    """
    found = _unequal(module, mesh, func, say)
    if found is None:
        return mesh
    if reason := _kept_equal(module, mesh):
        slow, fast = min(found.rates, key=_by(found)), max(found.rates, key=_by(found))
        times = found.rates[fast] / found.rates[slow]
        say(f"{slow} takes {times:.1f} times as long as {fast}, {reason}")
        return mesh
    devices = found.placed()
    named = ", ".join(f"@{name}" for name in devices)
    mesh_op(module, mesh.name).attributes["devices"] = ir.Attribute.parse(
        f"[{named}]", module.context
    )
    rows = found.rows(devices)
    speeds = [found.slowest(row) for row in rows]
    if not alike(speeds):
        SplitBatch(axis=BATCH_AXIS, weights=tuple(speeds), least=1).run(module)
    made = read_meshes(module)[mesh.name]
    say(_decided(found, rows, made.weights.get(BATCH_AXIS, ())))
    return made


def _unequal(
    module: ir.Module, mesh: Mesh, func: str, say: Callable[[str], None]
) -> Unequal | None:
    """The mesh's devices, if they are known and not alike."""
    ops = {
        symbol_name(view): view.operation
        for view in module.body.operations
        if view.operation.name == "pcp.device"
    }
    known = [ops[name] for name in mesh.devices if name in ops]
    if not known:
        return None
    if dumb := [symbol_name(op) for op in known if "throughput" not in op.attributes]:
        say(f"no throughput of {', '.join(dumb)} is known: all take equal parts")
        return None
    try:
        rates = plan.rates(copy(module), func, mesh.devices)
    except PassError as error:  # a type that was not measured, most likely
        say(f"the devices cannot be weighed, and take equal parts: {error}")
        return None
    if alike(list(rates.values())):
        return None
    hosts = {
        name: ir.StringAttr(ops[name].attributes["host"]).value
        if "host" in ops[name].attributes
        else ""
        for name in mesh.devices
    }
    return Unequal(mesh, rates, hosts)


def _by(found: Unequal) -> Callable[[str], float]:
    return lambda device: found.rates[device]


def _kept_equal(module: ir.Module, mesh: Mesh) -> str:
    """Why rates decide nothing over this mesh; empty where they do."""
    members, sizes = mesh.axes.get(BATCH_AXIS, 1), list(cut_sizes(module, BATCH_AXIS))
    if PIPELINE in mesh.axes:
        return "and stages, which weigh that, take equal parts of the batch"
    if members == 1:
        return (
            f'and its parts are as large: only along "{BATCH_AXIS}" are they weighed; '
            "--split says others"
        )
    if len(sizes) != 1:
        return f'and its part is as large: no one batch is cut along "{BATCH_AXIS}"'
    if sizes[0] < members:
        return f"and a batch of {sizes[0]} leaves nothing to weigh"
    return ""


def _decided(found: Unequal, rows: list[list[str]], shares: tuple[int, ...]) -> str:
    """The member at each place of "dp", and the size of its share."""
    sizes = shares or ("equal",) * len(rows)
    told = ", ".join(
        f"{' '.join(row)}: {size}" for row, size in zip(rows, sizes, strict=True)
    )
    return f'shares of the batch along "{BATCH_AXIS}", by the devices\' rates: {told}'
