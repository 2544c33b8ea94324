"""pcp-partition: one program for the whole mesh becomes one for each device."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from pcp.dialect import collectives, function_body, hlo
from pcp.dialect.base import integer, strings
from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import attributes, functions, refuse
from pcp.passes.core.walk import CONTROL_FLOW, block_of, returned
from pcp.passes.sharding.annotations import check_shardings
from pcp.passes.sharding.late import LATE
from pcp.passes.sharding.layout import SHARDING, WHY, Layout
from pcp.passes.sharding.local import Local, check_closed, localize
from pcp.passes.sharding.manual import (
    FROM_PART,
    MANUAL,
    PLACE,
    TO_PART,
    is_manual,
)
from pcp.passes.sharding.mesh import DEVICE, only_mesh
from pcp.passes.sharding.plan import ShardingPlan
from pcp.passes.sharding.resharding import ReshardStep, steps

Value = ir.Value


@dataclass(frozen=True)
class Partition(Pass):
    """Turn the global program into `module @<device> {...}` for each member.

    Assumes what pcp-insert-reshards leaves. Every function is rebuilt for each
    device with the types of its parts, reshards become collectives, and collectives
    are `ordered`: from here on dropping one on one device would be a deadlock. The
    border of a function keeps `pcp.sharding`, which says how the parts fit together.
    What a window needs of its neighbours' parts (a convolution's halo, an uneven pad or
    slice) is sent by permutes of those elements alone.
    A device's module takes the place of its `pcp.device`, whose facts it keeps in
    the attribute `pcp.device`.
    Leaves no `pcp.reshard`, `pcp.constraint` or `pcp.barrier_prop`.

    Before:

        func.func @f(%x: tensor<8x8xf32> {pcp.sharding = [[], ["tp"]]}, ...) {
          %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
              {pcp.sharding = [#pcp.sharding<@m, [[], []], [], ["tp"]>]}
          %y = "pcp.reshard"(%p) {sharding = #pcp.sharding<@m, [[], []], [], []>}

    After:

        module @d0 {
          func.func @f(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<8x4xf32> {
            %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
                : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
            %y = "pcp.all_reduce"(%p) {axes = ["tp"], kind = "sum", mesh = @m, ordered}
                : (tensor<8x4xf32>) -> tensor<8x4xf32>
            return %y : tensor<8x4xf32>
          }
        }
    """

    name = "pcp-partition"

    def run(self, module: ir.Module) -> None:
        """Replace the functions by one module a device."""
        with module.context:
            partition(module)


def partition(module: ir.Module) -> None:
    """See `Partition`."""
    mesh = only_mesh(module)
    whole = list(functions(module))
    for function in whole:
        check_shardings(function, mesh)
    plans = [ShardingPlan.read(function, mesh) for function in whole]
    for place, device in zip(mesh.members, mesh.devices, strict=True):
        block = home_of(module, device)
        for plan in plans:
            with ir.InsertionPoint(block), plan.function.location:
                Member(mesh, place, plan).build()
    for function in whole:
        function.erase()


def home_of(module: ir.Module, device: str) -> ir.Block:
    """An empty `module @<device>`, in the place of the device's description."""
    with ir.InsertionPoint(module.body), module.operation.location:
        home = ir.Operation.create("builtin.module", regions=1)
    home.attributes["sym_name"] = ir.StringAttr.get(device)
    for view in module.body.operations:
        op = view.operation
        if op.name == "pcp.device" and symbol_name(op) == device:
            facts = {n: op.attributes[n] for n in op.attributes if n != "sym_name"}
            home.attributes[DEVICE] = ir.DictAttr.get(facts)
            op.erase()
            break
    return home.regions[0].blocks.append()


# --- one member ---


@dataclass
class Member:
    """Builds one function for one member, at the current insertion point."""

    mesh: Mesh
    place: dict[str, int]
    plan: ShardingPlan
    values: dict[Value, Value] = field(default_factory=dict)
    fetched: dict[Hashable, Value] = field(default_factory=dict)

    def type_of(self, value: Value) -> ir.Type:
        """The type of the member's part of a value."""
        type_ = value.type
        if not isinstance(type_, ir.RankedTensorType):
            return type_
        layout = self.plan.layouts[value]
        if not any(layout.dims):
            return type_
        shape = layout.local_shape(type_.shape, self.mesh, self.place)
        return hlo.tensor(shape, type_.element_type)

    def build(self) -> None:
        """The function, with its name and its ports' attributes."""
        source = self.plan.function
        entry = block_of(source, 0)
        end = returned(entry)
        inputs = [self.type_of(a) for a in entry.arguments]
        places = [a.location for a in entry.arguments]
        made, block = function_body.begin(attributes(source), inputs, places)
        self.values.update(zip(entry.arguments, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            self._ops(entry)
        with end.location:
            function_body.finish(made, [self.values[v] for v in end.operands])

    def _ops(self, block: ir.Block) -> None:
        """Everything in a block but its terminator."""
        *ops, _ = block.operations
        for view in ops:
            op = view.operation
            with op.location:
                results = self.op(op)
            self.values.update(zip(op.results, results, strict=True))

    def op(self, op: ir.Operation) -> Sequence[Value]:
        if op.name in CONTROL_FLOW:
            return self._control_flow(op)
        operands = [self.values[v] for v in op.operands]
        if op.name == "pcp.reshard":
            return [self._reshard(op, operands[0])]
        if op.name == "pcp.barrier_prop":
            return operands
        if is_manual(op):
            return self._own(op, operands)
        if op.name == "pcp.broadcast":
            return [self._owned(op, operands[0])]
        if op.name.startswith("pcp.") and not self._is_local(op):
            refuse(op, "it stands in a program that is still to be partitioned")
        if op not in self.plan.rules:
            return self._whole(op, operands)
        rule, assignment = self.plan.rules[op]
        layouts = [self.plan.layouts[v] for v in (*op.operands, *op.results)]
        place, shared = self.place, self.fetched
        at = Local(op, rule, assignment, layouts, self.mesh, place, shared)
        results = self._joined(at, localize(at, operands))
        if op.name == "pcp.all_reduce":  # from here on, as all collectives
            results[0].owner.operation.attributes["ordered"] = _flag()
        return results

    def _is_local(self, op: ir.Operation) -> bool:
        """Whether a member does the op on its parts, as others do on theirs.

        A sum with the members of another mesh, who hold the same part, is such an op.
        """
        if op.name == "pcp.all_reduce":
            return ir.FlatSymbolRefAttr(op.attributes["mesh"]).value != self.mesh.name
        return op.name == "pcp.stop_gradient"

    def _whole(self, op: ir.Operation, operands: Sequence[Value]) -> Sequence[Value]:
        copy = op.clone()
        for name in (SHARDING, WHY, MANUAL):
            if name in copy.attributes:
                del copy.attributes[name]
        for i, operand in enumerate(operands):
            copy.operands[i] = operand
        return list(copy.results)

    def _own(self, op: ir.Operation, operands: Sequence[Value]) -> Sequence[Value]:
        """An op of the member's own program, or on its border."""
        if op.name == PLACE:
            number = self.mesh.members.index(self.place)
            return [hlo.constant(number, op.results[0].type)]
        if op.name in (TO_PART, FROM_PART):
            (value,), wanted = operands, self.type_of(op.results[0])
            if value.type != wanted:
                refuse(op, f"the part is {value.type}, and the program's {wanted}")
            return [value]
        check_closed(op)
        results = self._whole(op, operands)
        if "axes" in op.attributes:  # from here on, as all collectives
            results[0].owner.operation.attributes["ordered"] = _flag()
        return results

    def _owned(self, op: ir.Operation, value: Value) -> Value:
        """What all members along the axes hold alike, from the one that owns it."""
        axes = strings(op, "axes")
        layout = self.plan.layouts[op.operands[0]]
        if cut := {*layout.axes, *layout.unreduced} & set(axes):
            refuse(op, f'along "{min(cut)}" members hold parts, and no copies')
        root = integer(op, "root")
        return collectives.broadcast(
            value, mesh=self.mesh.name, axes=axes, root=root, ordered=_flag()
        )

    def _joined(self, at: Local, results: Sequence[Value]) -> Sequence[Value]:
        """Partial results other than sums are reduced where they arise."""
        joined = list(results)
        for kind, axes in at.rule.reductions(at.assignment).items():
            if kind != "sum":
                joined = [self._all_reduce(v, axes, kind) for v in joined]
        return joined

    def _control_flow(self, op: ir.Operation) -> Sequence[Value]:
        made = ir.Operation.create(
            op.name,
            operands=[self.values[v] for v in op.operands],
            results=[self.type_of(r) for r in op.results],
            attributes={
                name: op.attributes[name]
                for name in op.attributes
                if name not in (SHARDING, WHY, MANUAL)
            },
            regions=len(op.regions),
        )
        for source, target in zip(op.regions, made.regions, strict=True):
            old = source.blocks[0]
            block = target.blocks.append(
                *(self.type_of(a) for a in old.arguments),
                arg_locs=[a.location for a in old.arguments],
            )
            self.values.update(zip(old.arguments, block.arguments, strict=True))
            with ir.InsertionPoint(block):
                self._ops(old)
                end = returned(old)
                with end.location:
                    hlo.op("return", [self.values[v] for v in end.operands], [])
        return list(made.results)

    # --- collectives ---

    def _reshard(self, op: ir.Operation, value: Value) -> Value:
        source = op.operands[0]
        old, new = self.plan.layouts[source], self.plan.layouts[op.results[0]]
        shape = tuple(ir.RankedTensorType(source.type).shape)
        layout = old
        for step in steps(old, new, shape, self.mesh):
            value = MOVES[step.kind](self, step, layout, shape, value)
            if LATE in op.attributes:
                value.owner.attributes[LATE] = op.attributes[LATE]
            layout = step.after
        return value

    def _all_reduce(self, value: Value, axes: Sequence[str], kind: str) -> Value:
        return collectives.all_reduce(
            value, mesh=self.mesh.name, axes=axes, kind=kind, ordered=_flag()
        )

    def local(self, layout: Layout, shape: Sequence[int], value: Value) -> ir.Type:
        """The member's type of a tensor laid out so."""
        part = layout.local_shape(shape, self.mesh, self.place)
        return hlo.tensor(part, hlo.element_type(value))

    def sizes(self, step: ReshardStep, whole: Layout, n: int) -> list[int]:
        """The parts along `step.dim` of the members of the group, if unequal.

        `whole` is the layout in which the group's parts are joined.
        """
        own = self.mesh.part(n, whole.dims[step.dim], self.place)[1]
        parts = self.mesh.parts(own, step.axes)
        return [] if len(set(parts)) == 1 and parts[0] > 0 else parts


Move = Callable[[Member, ReshardStep, Layout, Sequence[int], Value], Value]


def _flag() -> ir.Attribute:
    return ir.UnitAttr.get()


def _sum(member: Member, step: ReshardStep, old: Layout, shape, value: Value) -> Value:
    return member._all_reduce(value, step.axes, "sum")


def _scatter(
    member: Member, step: ReshardStep, old: Layout, shape, value: Value
) -> Value:
    return collectives.reduce_scatter(
        value,
        member.local(step.after, shape, value),
        mesh=member.mesh.name,
        axes=step.axes,
        dim=step.dim,
        sizes=member.sizes(step, old, shape[step.dim]),
        ordered=_flag(),
    )


def _gather(
    member: Member, step: ReshardStep, old: Layout, shape, value: Value
) -> Value:
    return collectives.all_gather(
        value,
        member.local(step.after, shape, value),
        mesh=member.mesh.name,
        axes=step.axes,
        dim=step.dim,
        sizes=member.sizes(step, step.after, shape[step.dim]),
        ordered=_flag(),
    )


def _exchange(
    member: Member, step: ReshardStep, old: Layout, shape, value: Value
) -> Value:
    return collectives.all_to_all(
        value,
        member.local(step.after, shape, value),
        mesh=member.mesh.name,
        axes=step.axes,
        split=step.to,
        concat=step.dim,
        ordered=_flag(),
    )


def _permute(
    member: Member, step: ReshardStep, old: Layout, shape, value: Value
) -> Value:
    return collectives.permute(
        value,
        mesh=member.mesh.name,
        axes=step.axes,
        pairs=step.pairs,
        ordered=_flag(),
    )


def _slice(
    member: Member, step: ReshardStep, old: Layout, shape, value: Value
) -> Value:
    """The member's part of what it holds."""
    mesh, place = member.mesh, member.place
    held = old.slices(shape, mesh, place)[step.dim]
    own = step.after.slices(shape, mesh, place)[step.dim]
    start = [0] * len(shape)
    limit = list(hlo.shape_of(value))
    start[step.dim] = own.start - held.start
    limit[step.dim] = own.stop - held.start
    return hlo.slice_(value, start, limit)


def _keep(member: Member, step: ReshardStep, old: Layout, shape, value: Value) -> Value:
    """The value on the first member along the axes, zeros on the others."""
    if not any(member.place[axis] for axis in step.axes):
        return value
    return hlo.constant(0, value.type)


MOVES: dict[str, Move] = {
    "all_gather": _gather,
    "all_reduce": _sum,
    "all_to_all": _exchange,
    "keep": _keep,
    "permute": _permute,
    "reduce_scatter": _scatter,
    "slice": _slice,
}
