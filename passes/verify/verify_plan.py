"""pcp-verify-plan: the facts of a distributed program that no single op can see."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from pcp.dialect.attributes import (
    ELASTIC,
    On,
    Sharding,
    axis_sizes,
    check_sharding,
    sharding_axes,
)
from pcp.dialect.base import Invalid, integer, integers, strings, symbols
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError, nearest
from pcp.passes.analysis.collective_order import check_member_order
from pcp.passes.analysis.group_sizes import GROUPS, SIZED
from pcp.passes.analysis.memory_fit import check_memory
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import function_type


@dataclass(frozen=True)
class VerifyPlan(Pass):
    """Check what spans ops: symbols, axes, group sizes, channels, futures, order.

    Assumes that each op verifies. Changes nothing; refuses a plan in which

    * a symbol names nothing, or something of the wrong kind;
    * an axis is not in its mesh, or shapes do not agree with the group's size;
    * a channel has not exactly one sender and one receiver of one type;
    * a future is not waited for exactly once;
    * two members of a group meet different collectives, or in another order;
    * devices wait for each other in a round, when their programs are replayed;
    * a device has less memory than the arguments, or results, of one of its functions.

    Before, refused with `'pcp.all_reduce' op names axis "tp", which mesh @m has
    not (axes: dp)`; after `axes = ["dp"]`, the module as it was:

        "pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"}
            : () -> ()
        %y = "pcp.all_reduce"(%x) {axes = ["tp"], kind = "sum", mesh = @m}
            : (tensor<4xf32>) -> tensor<4xf32>
    """

    name = "pcp-verify-plan"

    def run(self, module: ir.Module) -> None:
        """Raise `PassError` at the first op that does not fit the others."""
        verify_plan(module)


def verify_plan(module: ir.Module) -> None:
    """Raise `PassError` at the first op that does not fit the others."""
    plan = CheckedProgram.read(module)
    for op in plan.ops:
        try:
            _check(plan, op)
        except Invalid as problem:
            fail(op, str(problem))
    _check_channels(plan.ops)
    check_memory(module, fail)
    check_member_order(module, plan.mesh_devices(), fail)


def fail(op: ir.Operation, message: str) -> None:
    """Raise `PassError` at the op."""
    where = location_string(op.location)
    raise PassError(f"{where}: '{op.name}' op {message}")


@dataclass
class CheckedProgram:
    """The pcp ops of a module, and what its symbols name.

    `scopes` has the symbols of each module, by where the module stands.
    """

    ops: list[ir.Operation] = field(default_factory=list)
    scopes: dict[ir.Operation, dict[str, ir.Operation]] = field(default_factory=dict)

    @classmethod
    def read(cls, module: ir.Module) -> "CheckedProgram":
        """Gather ops and symbols in one walk."""
        plan = cls()

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name == "builtin.module":
                plan.scopes[op] = _symbols(op)
            if op.name.startswith("pcp.") or _is_annotated(op):
                plan.ops.append(op)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
        return plan

    def find(self, user: ir.Operation, name: str) -> ir.Operation | None:
        """What `@name` is for `user`: in its module, or in one around that."""
        scope = user
        while scope is not None:
            if name in self.scopes.get(scope, {}):
                return self.scopes[scope][name]
            scope = scope.parent and scope.parent.operation
        return None

    def need(self, user: ir.Operation, name: str, *kinds: str) -> ir.Operation:
        """What `@name` is, which must be an op of one of `kinds`."""
        found = self.find(user, name)
        wanted = " or ".join(kinds)
        if found is None:
            known = [n for scope in self.scopes.values() for n in scope]
            raise Invalid(
                f"names @{name}, and there is no {wanted} of that name."
                + nearest(name, known)
            )
        if found.name not in kinds:
            raise Invalid(f"names @{name}, which is no {wanted} but a {found.name}")
        return found

    def axes(self, user: ir.Operation, mesh: str) -> dict[str, int]:
        """The axes of mesh `@mesh` and their sizes."""
        return axis_sizes(self.need(user, mesh, "pcp.mesh").attributes["axes"])

    def mesh_devices(self) -> dict[str, tuple[dict[str, int], list[str]]]:
        """Each mesh with listed devices: its axes, and the devices."""
        meshes = [op for op in self.ops if op.name == "pcp.mesh"]
        return {
            ir.StringAttr(op.attributes["sym_name"]).value: (
                axis_sizes(op.attributes["axes"]),
                symbols(op, "devices"),
            )
            for op in meshes
            if symbols(op, "devices")
        }


def _symbols(module: ir.Operation) -> dict[str, ir.Operation]:
    """The ops with a name in a module's body."""
    ops = [op.operation for op in module.regions[0].blocks[0].operations]
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in ops
        if "sym_name" in op.attributes
    }


def _is_annotated(op: ir.Operation) -> bool:
    return "pcp.sharding" in op.attributes or op.name == "func.func"


# --- one op among the others ---


def _check(plan: CheckedProgram, op: ir.Operation) -> None:
    if "mesh" in op.attributes and "axes" in op.attributes:
        _check_group(plan, op)
    for sharding, type_ in _shardings(op):
        _check_sharding(plan, op, sharding, type_)
    for name, kinds in SYMBOLS.get(op.name, {}).items():
        _check_symbol(plan, op, name, kinds)
    for type_ in _types(op):
        if isinstance(type_, On):
            device = ir.FlatSymbolRefAttr(type_.device).value
            plan.need(op, device, *DEVICE, "pcp.mesh")
    if (check := CHECKS.get(op.name)) is not None:
        check(plan, op)


# A partitioned device's name is that of the module with its program.
DEVICE = ("pcp.device", "builtin.module")
SYMBOLS: dict[str, dict[str, tuple[str, ...]]] = {
    "pcp.device": {"target": ("pcp.target",)},
    "pcp.link": {"ends": DEVICE},
    "pcp.mesh": {"devices": DEVICE},
    "pcp.send": {"to": DEVICE},
    "pcp.recv": {"source": DEVICE},
    "pcp.task": {"device": (*DEVICE, "pcp.mesh")},
    "pcp.grad": {"fn": ("func.func",)},
}


def _check_symbol(
    plan: CheckedProgram, op: ir.Operation, name: str, kinds: tuple[str, ...]
) -> None:
    attribute = op.attributes[name]
    if isinstance(attribute, ir.IntegerAttr):  # a rank in place of a device
        return
    one = isinstance(attribute, ir.FlatSymbolRefAttr)
    for user in [attribute.value] if one else symbols(op, name):
        plan.need(op, user, *kinds)


def _check_group(plan: CheckedProgram, op: ir.Operation) -> None:
    """The axes are the mesh's, and shapes agree with how many members there are."""
    mesh = ir.FlatSymbolRefAttr(op.attributes["mesh"]).value
    sizes = plan.axes(op, mesh)
    axes = strings(op, "axes")
    _check_axes(axes, mesh, sizes)
    if ELASTIC in (sizes[axis] for axis in axes):
        if op.name in SIZED and op.results[0].type.has_static_shape:
            raise Invalid(
                "has a result that depends on how many members there are, and "
                f"mesh @{mesh} is elastic along {_quoted(axes)}"
            )
        return
    members = prod(sizes[axis] for axis in axes)
    if (check := GROUPS.get(op.name)) is not None:
        check(op, members)


def _check_axes(axes: Iterable[str], mesh: str, sizes: dict[str, int]) -> None:
    for axis in axes:
        if axis not in sizes:
            raise Invalid(
                f'names axis "{axis}", which mesh @{mesh} has not '
                f"(axes: {', '.join(sizes)})"
            )


def _quoted(axes: Iterable[str]) -> str:
    return ", ".join(f'"{axis}"' for axis in axes)


# --- shardings ---


def _shardings(op: ir.Operation) -> Iterator[tuple[ir.Attribute, ir.Type]]:
    """Every sharding an op carries, with the type it is for."""
    if op.name in ("pcp.constraint", "pcp.reshard"):
        yield op.attributes["sharding"], op.operands[0].type
    if "pcp.sharding" in op.attributes:
        found = op.attributes["pcp.sharding"]
        count = len(found) if isinstance(found, ir.ArrayAttr) else -1
        if count != len(op.results):
            raise Invalid(
                "carries pcp.sharding, which is an array of one sharding for each "
                f"of its {len(op.results)} results"
            )
        yield from zip(found, [r.type for r in op.results], strict=True)
    if op.name == "func.func":
        yield from _function_shardings(op)


def _function_shardings(op: ir.Operation) -> Iterator[tuple[ir.Attribute, ir.Type]]:
    function = function_type(op)
    for name, types in (
        ("arg_attrs", function.inputs),
        ("res_attrs", function.results),
    ):
        if name not in op.attributes:
            continue
        for entry, type_ in zip(op.attributes[name], types, strict=True):
            attributes = ir.DictAttr(entry)
            if "pcp.sharding" in attributes:
                yield attributes["pcp.sharding"], type_


def _check_sharding(
    plan: CheckedProgram, op: ir.Operation, sharding: ir.Attribute, type_: ir.Type
) -> None:
    check_sharding(sharding, type_)
    assert isinstance(sharding, Sharding)
    mesh = ir.FlatSymbolRefAttr(sharding.mesh).value
    _check_axes(sharding_axes(sharding), mesh, plan.axes(op, mesh))


# --- futures, transfers, gradients ---


def _check_future(plan: CheckedProgram, op: ir.Operation) -> None:
    users = [use.owner for use in op.results[0].uses]
    waits = [user for user in users if user.operation.name == "pcp.wait"]
    if len(waits) != len(users):
        raise Invalid("has a future that something else than pcp.wait uses")
    if len(waits) != 1:
        raise Invalid(f"has a future that is waited for {len(waits)} times, not once")
    if waits[0].operation.block != op.block:
        raise Invalid("has a future that is waited for in another block")


def _check_transfer(plan: CheckedProgram, op: ir.Operation) -> None:
    """Where links are described, tensors move only along them."""
    links = [set(symbols(o, "ends")) for o in plan.ops if o.name == "pcp.link"]
    types = (op.operands[0].type, op.results[0].type)
    ends = [ir.FlatSymbolRefAttr(type_.device).value for type_ in types]
    placed = [plan.need(op, end, *DEVICE, "pcp.mesh") for end in ends]
    between_devices = all(p.name in DEVICE for p in placed)
    if links and between_devices and set(ends) not in links:
        raise Invalid(
            f"moves from @{ends[0]} to @{ends[1]}, and no pcp.link joins them"
        )


def _check_gradient(plan: CheckedProgram, op: ir.Operation) -> None:
    name = ir.FlatSymbolRefAttr(op.attributes["fn"]).value
    function = plan.need(op, name, "func.func")
    type_ = function_type(function)
    first: Any = type_.results[0] if type_.results else None
    scalar = isinstance(first, ir.RankedTensorType) and first.rank == 0
    if not (scalar and isinstance(first.element_type, ir.FloatType)):
        raise Invalid(f"needs @{name} to return a floating-point scalar, not {first}")
    for argument in integers(op, "wrt"):
        if argument >= len(type_.inputs):
            raise Invalid(
                f"has wrt {argument}, and @{name} has {len(type_.inputs)} arguments"
            )


CHECKS: dict[str, Callable[[CheckedProgram, ir.Operation], None]] = {
    "pcp.start": _check_future,
    "pcp.transfer": _check_transfer,
    "pcp.grad": _check_gradient,
}


def _types(op: ir.Operation) -> list[ir.Type]:
    return [value.type for value in (*op.operands, *op.results)]


# --- channels ---


def _check_channels(ops: Iterable[ir.Operation]) -> None:
    """Each channel has one sender and one receiver, of one type."""
    channels: dict[int, dict[str, ir.Operation]] = {}
    for op in ops:
        if op.name not in ("pcp.send", "pcp.recv"):
            continue
        ends = channels.setdefault(integer(op, "channel"), {})
        if op.name in ends:
            what = {"pcp.send": "sender", "pcp.recv": "receiver"}[op.name]
            fail(op, f"is the second {what} of channel {integer(op, 'channel')}")
        ends[op.name] = op
    for channel, ends in channels.items():
        _check_channel(channel, ends)


def _check_channel(channel: int, ends: dict[str, ir.Operation]) -> None:
    for name, other in (("pcp.send", "receiver"), ("pcp.recv", "sender")):
        if len(ends) == 1 and name in ends:
            fail(ends[name], f"is alone: channel {channel} has no {other}")
    sent, received = ends["pcp.send"].operands[0].type, ends["pcp.recv"].results[0].type
    if sent != received:
        fail(
            ends["pcp.recv"], f"receives {received}, and channel {channel} sends {sent}"
        )
