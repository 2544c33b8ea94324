"""pcp-split-batch: unequal devices share a batch so that all finish together."""

from collections.abc import Sequence
from dataclasses import dataclass

from pcp.dialect.attributes import Split
from pcp.dialect.base import as_number
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.mesh import Mesh
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import (
    ROLE,
    argument_attributes,
    function_type,
    string,
    symbol_name,
)
from pcp.passes.core.rewriting import functions, refuse
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import only_mesh
from pcp.passes.sharding.ports import port_shardings


@dataclass(frozen=True)
class SplitBatch(Pass):
    """Cut the batch along a mesh axis by what each device gets done.

    With sizes b and rates r (`weights`, or the devices' `throughput` of `dtype`) it
    takes the b that minimise max b/r: the shares rounded down, and each sample left
    to the device that would finish first with it. A device whose `memory` holds no
    more than m samples of `bytes-per-sample` gets at most m; each gets `least` at
    least, where there are that many. The sizes stand as
    `split` on the mesh; pcp-partition cuts by them. Gradients stay exact, since the
    loss of the whole program is divided by the whole batch.

    Before, with 8 rows of a batch cut along "dp":

        "pcp.mesh"() {axes = [#pcp.axis<"dp", 3>], devices = [@a, @b, @c], ...}

    After pcp-split-batch{weights=5,2,1}:

        "pcp.mesh"() {..., split = #pcp.split<"dp", [5, 2, 1]>}
    """

    name = "pcp-split-batch"
    axis: str = "dp"
    weights: tuple[float, ...] = ()
    dtype: str = "f32"
    bytes_per_sample: int = 0
    least: int = 0

    def run(self, module: ir.Module) -> None:
        """Write the split on the mesh."""
        with module.context:
            mesh = only_mesh(module)
            op = mesh_op(module, mesh.name)
            if self.axis not in mesh.axes:
                known = ", ".join(mesh.axes)
                refuse(op, f'mesh @{mesh.name} has no axis "{self.axis}" ({known})')
            devices = _Devices.read(module, mesh, self.axis, op)
            rates = list(self.weights) or devices.rates(self.dtype)
            limits = devices.limits(self.bytes_per_sample)
            try:
                sizes = shares(_batch(module, self.axis, op), rates, limits, self.least)
            except ValueError as error:
                refuse(op, str(error))
            _check_busy(sizes, mesh, self.axis, op)
            op.attributes["split"] = Split.get(
                ir.StringAttr.get(self.axis),
                ir.ArrayAttr.get([_i64(size) for size in sizes]),
            )


def shares(
    batch: int,
    rates: Sequence[float],
    limits: Sequence[int | None],
    least: int = 0,
) -> list[int]:
    """Sizes that sum to `batch` and minimise max size/rate, none above its limit.

    None is below `least` where the batch is large enough for that. Raises `ValueError`
    when the limits leave no room for the batch.
    """
    if len(rates) != len(limits):
        raise ValueError(f"{len(rates)} weights for {len(limits)} members")
    if min(rates) < 0 or not sum(rates):
        raise ValueError("weights are at least 0, and not all of them are 0")
    room = [batch if limit is None else min(limit, batch) for limit in limits]
    least = min(least, batch // len(rates))
    rest = batch - least * len(rates)
    # No more than what is best without `least`: those who need it come first.
    sizes = [
        min(max(least, int(rest * rate / sum(rates))), most)
        for rate, most in zip(rates, room, strict=True)
    ]
    while sum(sizes) < batch:
        open_ = [i for i, n in enumerate(sizes) if n < room[i] and rates[i] > 0]
        if not open_:
            raise ValueError(
                f"the devices have memory for {sum(sizes)} of {batch} samples; use a "
                "smaller batch, more devices, or cut the model too"
            )
        sizes[min(open_, key=lambda i: ((sizes[i] + 1) / rates[i], i))] += 1
    return sizes


def _check_busy(sizes: Sequence[int], mesh: Mesh, axis: str, op: ir.Operation) -> None:
    """Raise where a member gets nothing: every one takes part in every exchange."""
    for i, size in enumerate(sizes):
        if not size:
            places = zip(mesh.members, mesh.devices, strict=True)
            idle = ", ".join(
                f"@{device}" for place, device in places if place[axis] == i
            )
            refuse(
                op,
                f'member {i} along "{axis}" ({idle}) gets none of {sum(sizes)} samples '
                f"(shares {', '.join(map(str, sizes))}); leave it out of the mesh, "
                "give it a larger weight, or use a larger batch",
            )


# --- what the module says ---


def mesh_op(module: ir.Module, name: str) -> ir.Operation:
    """The `pcp.mesh` of this name."""
    return next(
        op.operation
        for op in module.body.operations
        if op.operation.name == "pcp.mesh" and symbol_name(op) == name
    )


def _batch(module: ir.Module, axis: str, mesh: ir.Operation) -> int:
    """The size of the dimension that the axis cuts, the same wherever it does."""
    found = cut_sizes(module, axis)
    if not found:
        raise PassError(
            f'pcp-split-batch: no argument has its first dimension cut along "{axis}"; '
            "annotate the data with pcp.sharding first"
        )
    if len(found) > 1:
        listed = ", ".join(f"{n} ({name})" for n, name in found.items())
        refuse(mesh, f'dimensions of different sizes are cut along "{axis}": {listed}')
    return next(iter(found))


def cut_sizes(module: ir.Module, axis: str) -> dict[int, str]:
    """The sizes of first dimensions that the axis alone cuts; an argument with each.

    What is known to be kept from step to step is no data: it has no batch.
    """
    found: dict[int, str] = {}
    for function in functions(module):
        type_ = function_type(function)
        given = port_shardings(function, "arg_attrs", len(type_.inputs))
        roles = [string(said, ROLE) for said in argument_attributes(function)]
        ports = zip(type_.inputs, given, roles, strict=True)
        for i, (port, sharding, role) in enumerate(ports):
            if sharding is None or role in ("param", "state", "grad"):
                continue
            dims = from_attribute(sharding).dims
            if dims and dims[0] == (axis,):
                name = f"argument {i} of @{symbol_name(function)}"
                found.setdefault(ir.RankedTensorType(port).shape[0], name)
    return found


@dataclass(frozen=True)
class _Devices:
    """The device ops along an axis; members that differ elsewhere count together."""

    members: list[list[ir.Operation]]
    mesh: ir.Operation

    @classmethod
    def read(
        cls, module: ir.Module, mesh: Mesh, axis: str, op: ir.Operation
    ) -> "_Devices":
        described = {
            symbol_name(view): view.operation
            for view in module.body.operations
            if view.operation.name == "pcp.device"
        }
        members: list[list[ir.Operation]] = [[] for _ in range(mesh.axes[axis])]
        for place, device in zip(mesh.members, mesh.devices, strict=True):
            if device in described:
                members[place[axis]].append(described[device])
        return cls(members, op)

    def rates(self, dtype: str) -> list[float]:
        """What the slowest device of each member does in a second."""
        return [min(self._rate(d, dtype) for d in group) for group in self._known()]

    def _known(self) -> list[list[ir.Operation]]:
        if not all(self.members):
            refuse(
                self.mesh,
                "its devices are not described; give weights=5,2,1, or pcp.device ops "
                "with their throughput",
            )
        return self.members

    def _rate(self, device: ir.Operation, dtype: str) -> float:
        throughput = device.attributes.get("throughput")
        if throughput is None or dtype not in ir.DictAttr(throughput):
            refuse(device, f"it has no throughput of {dtype}; measure it: pcp probe")
        return as_number(ir.DictAttr(throughput)[dtype], f"throughput of {dtype}")

    def limits(self, bytes_per_sample: int) -> list[int | None]:
        """How many samples each member's memory holds; None where nothing is said."""
        if not bytes_per_sample:
            return [None] * len(self.members)
        return [
            min(
                (
                    ir.IntegerAttr(d.attributes["memory"]).value // bytes_per_sample
                    for d in group
                    if "memory" in d.attributes
                ),
                default=None,
            )
            for group in self.members
        ]


def _i64(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
