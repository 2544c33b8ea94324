"""pcp-device-precision: a device contracts in the type that it is fast in."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pcp.dialect import hlo
from pcp.dialect.attributes import unwrap
from pcp.dialect.base import strings
from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.base import Pass
from pcp.passes.functions import symbol_name
from pcp.passes.partition import DEVICE
from pcp.passes.rewriting import before, refuse
from pcp.passes.sharding.flow import CONTROL_FLOW, block_of, returned, walk
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.ports import port_shardings

Axes = frozenset[str]

PRECISION = "precision"
CONTRACTIONS = ("stablehlo.dot_general", "stablehlo.convolution")

#: Collectives after which the members along their axes hold the same.
_AGREE = ("pcp.all_reduce", "pcp.all_gather", "pcp.broadcast")
#: Collectives after which each member along their axes holds a part of its own.
_CUT = ("pcp.reduce_scatter", "pcp.all_to_all")
#: What may give members the same along axes that nothing here says.
_OPAQUE = ("pcp.permute", "pcp.recv", "func.call")

#: Of a value that nothing is known of, and of all that is made of it.
UNKNOWN: Axes = frozenset({"?"})


@dataclass(frozen=True)
class DevicePrecision(Pass):
    """Convert what a device multiplies to the compute type of its `precision`.

    Assumes what pcp-partition leaves: `module @<device>` with the device's facts in
    `pcp.device`. Of a device with `precision = #pcp.precision<bf16, f32, f32>`, each
    f32 `dot_general` and `convolution` takes operands rounded to bf16, and adds up
    and gives f32. All else stays f32: parameters, optimizer state, norms, reductions,
    and the collectives, so that members of different types meet in one.

    What several members compute alike (they are replicas along a mesh axis, as in an
    optimizer that multiplies matrices) must come out alike: where such members differ
    in compute type, it stays f32. So does what says an `algorithm` of its own, or asks
    for more than the default precision.

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
            homes = {symbol_name(op): op for op in _homes(module)}
            types = {name: compute_type(home) for name, home in homes.items()}
            if not any(types.values()):
                return
            meshes = read_meshes(module)
            for name, home in homes.items():
                if (narrow := types[name]) is not None:
                    mesh = _mesh_of(home, name, meshes)
                    lower(home, narrow, Replicas(mesh, name, types))


def compute_type(op: ir.Operation) -> ir.Type | None:
    """The narrower type that a device's module names; None for f32 or nothing."""
    if DEVICE not in op.attributes:
        return None
    facts = ir.DictAttr(op.attributes[DEVICE])
    if PRECISION not in facts:
        return None
    compute = unwrap(facts[PRECISION].compute)
    return None if isinstance(compute, ir.F32Type) else compute


def _homes(module: ir.Module) -> Iterator[ir.Operation]:
    for view in module.body.operations:
        if view.operation.name == "builtin.module":
            yield view.operation


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


def _mesh_of(home: ir.Operation, device: str, meshes: dict[str, Mesh]) -> Mesh:
    for mesh in meshes.values():
        if device in mesh.devices:
            return mesh
    known = ", ".join(d for mesh in meshes.values() for d in mesh.devices) or "none"
    refuse(
        home,
        f"@{device} has a precision and is in no mesh (devices of meshes: {known}); "
        "add it to the devices of a pcp.mesh, or leave its precision out",
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


def lower(home: ir.Operation, narrow: ir.Type, replicas: Replicas) -> None:
    """Narrow the contractions of a device's module, as `DevicePrecision` says."""
    for function in _functions(home):
        varies = Variation.of(function)
        for op in list(walk(block_of(function, 0))):
            if _is_free(op) and replicas.agree(varies.axes(op.operands)):
                _narrow(op, narrow)


def _functions(home: ir.Operation) -> Iterator[ir.Operation]:
    for view in home.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == "func.func" and op.regions[0].blocks:
            yield op


def _is_free(op: ir.Operation) -> bool:
    """Whether an op is an f32 contraction that leaves its precision to us."""
    if op.name not in CONTRACTIONS or hlo.attribute(op, "algorithm") is not None:
        return False
    if "HIGH" in str(hlo.attribute(op, "precision_config")):
        return False
    values = (*op.operands, *op.results)
    return all(isinstance(hlo.element_type(v), ir.F32Type) for v in values)


def _narrow(op: ir.Operation, narrow: ir.Type) -> None:
    with before(op):
        for i, operand in enumerate(list(op.operands)):
            op.operands[i] = hlo.convert(operand, narrow)


# --- along which axes members surely have values of their own ---


@dataclass
class Variation:
    """Axes along which a value is a part or a partial sum, not a copy.

    Only what is sure: from the shardings of the function's arguments forwards. A
    value that is cut out of a copy counts as a copy, and so does what came by messages
    to single members, which may gather.
    """

    known: dict[ir.Value, Axes] = field(default_factory=dict)

    @classmethod
    def of(cls, function: ir.Operation) -> "Variation":
        """Follow a function's values from its arguments."""
        found = cls()
        entry = block_of(function, 0)
        given = port_shardings(function, "arg_attrs", len(entry.arguments))
        for argument, sharding in zip(entry.arguments, given, strict=True):
            found.known[argument] = _cut_axes(sharding)
        found._block(entry)
        return found

    def axes(self, values: Iterable[ir.Value]) -> Axes:
        """Along which axes what is made of `values` varies."""
        return _union([self.known.get(v, frozenset()) for v in values])

    def _block(self, block: ir.Block) -> list[Axes]:
        """Follow a block; the axes of what it hands on."""
        for view in block.operations:
            op = view.operation
            for result, axes in zip(op.results, self._results(op), strict=True):
                self.known[result] = axes
        return [self.axes([value]) for value in returned(block).operands]

    def _results(self, op: ir.Operation) -> list[Axes]:
        if op.name == "stablehlo.while":
            return self._loop(op)
        if op.name in CONTROL_FLOW:
            branches = [self._block(region.blocks[0]) for region in op.regions]
            return [
                frozenset.intersection(*each) for each in zip(*branches, strict=True)
            ]
        own = self.axes(op.operands)
        if op.name in _OPAQUE:
            own = UNKNOWN
        elif op.name in _AGREE:
            own -= set(strings(op, "axes"))
        elif op.name in _CUT:
            own = _union([own, frozenset(strings(op, "axes"))])
        return [own] * len(op.results)

    def _loop(self, op: ir.Operation) -> list[Axes]:
        """The largest sets that the first and every later round agree on."""
        carried = [self.axes([value]) for value in op.operands]
        while True:
            for region in op.regions:
                arguments = region.blocks[0].arguments
                self.known.update(zip(arguments, carried, strict=True))
            self._block(block_of(op, 0))
            after = self._block(block_of(op, 1))
            kept = [_common(each) for each in zip(carried, after, strict=True)]
            if kept == carried:
                return carried
            carried = kept


def _union(sets: Iterable[Axes]) -> Axes:
    """What is made of all of them varies along the axes of each."""
    joined = frozenset[str]().union(*sets)
    return UNKNOWN if joined & UNKNOWN else joined


def _common(sets: Sequence[Axes]) -> Axes:
    """What may be any of them varies along the axes of all."""
    return UNKNOWN if _union(sets) == UNKNOWN else frozenset.intersection(*sets)


def _cut_axes(sharding: ir.Attribute | None) -> Axes:
    if sharding is None:
        return frozenset()
    layout = from_attribute(sharding)
    return frozenset((*layout.axes, *layout.unreduced))
