"""pcp-device-precision: a device contracts in the type that it is fast in."""

from collections.abc import Mapping
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.attributes import unwrap
from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.analysis.variation import UNKNOWN, Axes, variations
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.narrow_floats import is_free_contraction
from pcp.passes.core.rewriting import before, device_modules, functions, refuse
from pcp.passes.core.walk import block_of, walk
from pcp.passes.sharding.mesh import DEVICE, read_meshes

PRECISION = "precision"


@dataclass(frozen=True)
class DevicePrecision(Pass):
    """Convert what a device multiplies to the compute type of its `precision`.

    Assumes what pcp-partition or pcp-lower-schedule leaves: `module @<device>` with
    the device's facts in `pcp.device`. Of a device with
    `precision = #pcp.precision<bf16, f32, f32>`, each f32 `dot_general` and
    `convolution` takes operands rounded to bf16, and adds up and gives f32. All else
    stays f32: parameters, optimizer state, norms, reductions, collectives, and what
    stages send each other, so that members of different types meet in one.

    What several members compute alike (they are replicas along a mesh axis, as in an
    optimizer that multiplies matrices, or stages that make the same of what both
    have) must come out alike: where such members differ in compute type, it stays
    f32. A stage is taken to be alone with what it makes of an argument, known by its
    `pcp.name`, that no other stage has. What says an `algorithm` of its own, or asks
    for more than the default precision, stays f32 too.

    Before, and after:

        module @d0 attributes {pcp.device = {precision = #pcp.precision<bf16, ...>}} {
          %y = stablehlo.dot_general %x, %w : (tensor<4x8xf32>, ...) -> tensor<4x2xf32>

          %0 = stablehlo.convert %x : (tensor<4x8xf32>) -> tensor<4x8xbf16>
          %1 = stablehlo.convert %w : (tensor<8x2xf32>) -> tensor<8x2xbf16>
          %y = stablehlo.dot_general %0, %1 : (tensor<4x8xbf16>, ...) -> tensor<4x2xf32>
    """

    name = "pcp-device-precision"

    def run(self, module: ir.Module) -> None:
        """Rewrite the contractions of each device's module."""
        with module.context:
            _check_placed(module)
            homes = device_modules(module)
            types = {name: compute_type(home) for name, home in homes.items()}
            if not any(types.values()):
                return
            meshes = read_meshes(module)
            for name, home in homes.items():
                if types[name] is not None:
                    _check_member(home, name, meshes)
            for mesh in meshes.values():
                own = {d: homes[d] for d in mesh.devices if d in homes}
                _lower(own, mesh, types)


def compute_type(op: ir.Operation) -> ir.Type | None:
    """The narrower type that a device's module names; None for f32 or nothing."""
    if DEVICE not in op.attributes:
        return None
    facts = ir.DictAttr(op.attributes[DEVICE])
    if PRECISION not in facts:
        return None
    compute = unwrap(facts[PRECISION].compute)
    return None if isinstance(compute, ir.F32Type) else compute


def _check_placed(module: ir.Module) -> None:
    """A device of a mesh that still stands beside its program is unpartitioned."""
    placed = {
        device for mesh in read_meshes(module).values() for device in mesh.devices
    }
    for view in module.body.operations:
        op = view.operation
        if op.name != "pcp.device" or PRECISION not in op.attributes:
            continue
        if symbol_name(op) in placed:
            refuse(op, "its program is not cut out yet; run pcp-partition first")


def _check_member(home: ir.Operation, device: str, meshes: dict[str, Mesh]) -> None:
    named = [d for mesh in meshes.values() for d in mesh.devices]
    if device not in named:
        known = ", ".join(named) or "none"
        refuse(
            home,
            f"@{device} has a precision and is in no mesh (devices of meshes: {known});"
            " add it to the devices of a pcp.mesh, or leave its precision out",
        )


@dataclass(frozen=True)
class Replicas:
    """Which members compute the same as a device, and in which types."""

    mesh: Mesh
    device: str
    types: dict[str, ir.Type | None]

    def agree(self, varies: Axes) -> bool:
        """Whether all that differ from the device only along other axes share its type.

        `varies` are the axes along which members have parts of their own.
        """
        places = dict(zip(self.mesh.devices, self.mesh.members, strict=True))
        own = places[self.device]
        return all(
            self.types.get(device) == self.types[self.device]
            for device, place in places.items()
            if all(place[axis] == own[axis] for axis in varies - UNKNOWN)
        )


def _lower(
    homes: Mapping[str, ir.Operation], mesh: Mesh, types: dict[str, ir.Type | None]
) -> None:
    """Narrow the contractions of one mesh's devices, as `DevicePrecision` says."""
    functions = {device: _functions(home) for device, home in homes.items()}
    names = dict.fromkeys(name for own in functions.values() for name in own)
    for name in names:
        alike = {d: own[name] for d, own in functions.items() if name in own}
        for device, found in variations(alike, mesh).items():
            if (narrow := types[device]) is None:
                continue
            replicas = Replicas(mesh, device, types)
            for op in list(walk(block_of(alike[device], 0))):
                if is_free_contraction(op) and replicas.agree(found.axes(op.operands)):
                    _narrow(op, narrow)


def _functions(home: ir.Operation) -> dict[str, ir.Operation]:
    """A device's functions with a body, by name."""
    return {symbol_name(function): function for function in functions(home)}


def _narrow(op: ir.Operation, narrow: ir.Type) -> None:
    with before(op):
        for i, operand in enumerate(list(op.operands)):
            op.operands[i] = hlo.convert(operand, narrow)
