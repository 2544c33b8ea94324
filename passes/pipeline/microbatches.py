"""Microbatches as one more axis of the mesh, whose members come one after the other.

Data is cut along this virtual axis behind all others, parameters are not. Where
propagation and resharding then leave nothing to exchange along it but sums at the
end, the microbatches separate: each runs its part, and their partial results are
added. What is exchanged along the other axes stays as it is, but that a sum over
both is made over the microbatches first and between devices once, behind the last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.core.functions import (
    ROLE,
    argument_attributes,
    entry,
    function_type,
    string,
)
from pcp.passes.core.rewriting import functions, refuse
from pcp.passes.core.walk import block_of, walk
from pcp.passes.pipeline.flow import AXIS, GIVEN, Flow
from pcp.passes.pipeline.separation import check_tail, summed
from pcp.passes.pipeline.whole import joins_of_data, take_whole
from pcp.passes.sharding import expansions
from pcp.passes.sharding.expansions import HINTS
from pcp.passes.sharding.insert_reshards import Resharder
from pcp.passes.sharding.layout import (
    SHARDING,
    Axes,
    Layout,
    from_attribute,
    to_attribute,
)
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.owners import give_owners
from pcp.passes.sharding.plan import ShardingPlan
from pcp.passes.sharding.ports import port_shardings, set_port_shardings
from pcp.passes.sharding.propagate_sharding import PropagateSharding
from pcp.passes.sharding.resharding import ReshardStep, steps

_NEVER = 1e30


@dataclass(frozen=True)
class Separated:
    """A function whose data is cut along the virtual axis.

    `mesh` has the axes that a stage is cut along, and the virtual one last. `whole` are
    the arguments that the copy has once more, behind the others, as data of all
    microbatches.
    """

    module: ir.Module
    flow: Flow
    mesh: Mesh
    plan: ShardingPlan
    whole: Sequence[int]

    @property
    def count(self) -> int:
        """How many microbatches there are."""
        return self.mesh.axes[AXIS]

    @property
    def rows(self) -> list[dict[str, int]]:
        """The places of the devices that run one stage together."""
        return [
            {a: n for a, n in place.items() if a != AXIS}
            for place in self.mesh.members
            if place[AXIS] == 0
        ]


@dataclass
class _OneByOne(Resharder):
    """Members that come one after the other can add, and talk in no other way."""

    summed: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def price_of(
        self, old: Layout, new: Layout, shape: tuple[int, ...], width: int
    ) -> float:
        """Bytes to add up; as good as never what would be an exchange."""
        found = steps(old, new, shape, self.mesh)
        far = any(_is_exchange(step) for step in found)
        return super().price_of(old, new, shape, width) + (_NEVER if far else 0.0)

    def split_sums(self, block: ir.Block) -> None:
        """Sums over microbatches before what is done with them between devices."""
        for view in list(block.operations):
            op = view.operation
            if op.name != "pcp.reshard":
                continue
            source = op.operands[0]
            old = self.layouts[source]
            new = from_attribute(op.attributes["sharding"])
            between = old.without([AXIS])
            if AXIS in old.unreduced and AXIS not in (*old.axes, *new.unreduced):
                if between != new:
                    op.operands[0] = self._sum(source, between, op)

    def _sum(self, source: ir.Value, layout: Layout, op: ir.Operation) -> ir.Value:
        """The value summed over microbatches, in front of `op`."""
        if source not in self.summed:
            with ir.InsertionPoint(op), op.location:
                made = ir.Operation.create(
                    "pcp.reshard",
                    results=[source.type],
                    operands=[source],
                    attributes={"sharding": to_attribute(layout, self.mesh.name)},
                )
            self.summed[source] = made.results[0]
        return self.summed[source]


def _is_exchange(step: ReshardStep) -> bool:
    """Whether members along the virtual axis would have to talk."""
    return AXIS in step.axes and step.kind not in ("all_reduce", "slice")


def separate(function: ir.Operation, count: int, mesh: Mesh) -> Separated:
    """A copy of the function as it runs in `count` microbatches, not yet cut up.

    `mesh` has the axes that a stage is cut along; the function's ports say how, one
    that says nothing is whole. Raises `PassError` at the first op that needs more
    than its microbatch.
    """
    _check_free(function, mesh)
    virtual = Mesh(mesh.name, {AXIS: count})
    alone = _propagated(function, virtual, mesh)
    if joins := joins_of_data(alone.function, AXIS):
        alone = _propagated(function, virtual, mesh, joins)
    cuts = [_propagated(function, mesh, mesh, joins), alone] if mesh.axes else [alone]
    joint = Mesh(mesh.name, {**mesh.axes, AXIS: count}, (), mesh.weights)
    made = _alone(function, joint, joins)
    copy = made.function
    if not mesh.axes:
        _without_hints(copy)
    _combine(copy, [cut.function for cut in cuts], joint)
    (joint,) = read_meshes(made.module).values()
    resharder = _OneByOne(joint)
    resharder.function(copy)
    resharder.split_sums(block_of(copy, 0))
    give_owners(copy, replace(joint, unlike=mesh.unlike))
    plan = ShardingPlan.read(copy, joint)
    flow = Flow.read(copy, summed(copy, plan, joint))
    check_tail(flow, plan)
    return Separated(made.module, flow, joint, plan, made.whole)


@dataclass(frozen=True)
class _Copy:
    """A copy of a function in a module of its own; `whole`: see `Separated`."""

    module: ir.Module
    function: ir.Operation
    whole: Sequence[int]


def _alone(function: ir.Operation, mesh: Mesh, joins: Sequence[int] = ()) -> _Copy:
    """A copy with the mesh, in which the ops at `joins` read data as a whole.

    All copies have the ops that propagation leaves, so that they can be compared.
    """
    with function.location:
        module = ir.Module.create()
    ir.InsertionPoint(module.body).insert(_mesh_op(mesh))
    with ir.InsertionPoint(module.body):
        copy = function.clone().operation
    expansions.split(copy)
    return _Copy(module, copy, take_whole(copy, joins) if joins else ())


def _propagated(
    function: ir.Operation, mesh: Mesh, whole: Mesh, joins: Sequence[int] = ()
) -> _Copy:
    """A copy with shardings along these axes alone, on every op.

    Microbatches are asked for without the other axes, which may well want to cut what
    is a batch another way (a parameter along its rows): who adds in turn does not.
    """
    made = _alone(function, mesh, joins)
    if AXIS in mesh.axes:
        _without_hints(made.function)
    _annotate(made.function, mesh, whole)
    PropagateSharding().run(made.module)
    (copy,) = functions(made.module)
    return replace(made, function=copy)


def _combine(function: ir.Operation, cuts: Sequence[ir.Operation], mesh: Mesh) -> None:
    """Every tensor cut as between devices, and each part into microbatches."""
    between, alone = cuts[0], cuts[-1]
    entries = [block_of(f, 0).arguments for f in (function, alone)]
    shardings = port_shardings(alone, "arg_attrs", len(entries[1]))
    inner = {
        argument: from_attribute(sharding)
        for argument, sharding in zip(entries[0], shardings, strict=True)
        if sharding is not None
    }
    others = walk(block_of(alone, 0))
    for op, outer in zip(
        walk(block_of(function, 0)), walk(block_of(between, 0)), strict=True
    ):
        if op.name in HINTS:  # which `alone` does not have
            whole = Layout.replicated(ir.RankedTensorType(op.results[0].type).rank)
            inner[op.results[0]] = inner.get(op.operands[0], whole)
        else:
            layouts = _said(next(others))
            inner.update(zip(op.results, layouts, strict=False))
        _write(op, outer, inner, mesh, is_whole=between is alone)
    ports = [_ports(function, mesh), _ports(cuts[-1], mesh)]
    inputs, results = (
        [_joined(pair) for pair in zip(*side, strict=True)]
        for side in zip(*ports, strict=True)
    )
    _set_ports(function, inputs, results, mesh)


def _said(op: ir.Operation) -> list[Layout]:
    """How propagation says that an op's results lie, or that a constraint is to."""
    if op.name == "pcp.constraint":
        return [from_attribute(op.attributes["sharding"])]
    found = op.attributes[SHARDING] if SHARDING in op.attributes else []
    return [from_attribute(sharding) for sharding in found]


def _write(
    op: ir.Operation,
    outer: ir.Operation,
    inner: dict[ir.Value, Layout],
    mesh: Mesh,
    *,
    is_whole: bool,
) -> None:
    """Say on the op what both say; `is_whole`: devices do not cut anything."""
    said = _said(outer)
    layouts = [
        inner[result] if is_whole else _joined([layout, inner[result]])
        for result, layout in zip(op.results, said, strict=False)
    ]
    shardings = [to_attribute(layout, mesh.name) for layout in layouts]
    if op.name == "pcp.constraint":
        op.attributes["sharding"] = shardings[0]
    elif said:
        op.attributes[SHARDING] = ir.ArrayAttr.get(shardings)


def _joined(layouts: Iterable[Layout]) -> Layout:
    """The parts of each layout cut by the next."""
    dims = zip(*(layout.dims for layout in layouts), strict=True)
    return Layout(tuple(tuple(a for axes in dim for a in axes) for dim in dims))


def _mesh_op(mesh: Mesh) -> ir.Operation:
    axes = ", ".join(f'#pcp.axis<"{axis}", {n}>' for axis, n in mesh.axes.items())
    splits = ", ".join(
        f'#pcp.split<"{axis}", [{", ".join(map(str, sizes))}]>'
        for axis, sizes in mesh.weights.items()
        if axis in mesh.axes
    )
    split = f"split = [{splits}], " if splits else ""
    text = f'axes = [{axes}], devices = [], {split}sym_name = "{mesh.name}"'
    with ir.Location.unknown():
        return ir.Operation.parse(f'"pcp.mesh"() {{{text}}} : () -> ()')


def _check_free(function: ir.Operation, mesh: Mesh) -> None:
    """No op is resharded already; nothing is asked for along other axes."""
    for op in walk(block_of(function, 0)):
        if op.name == "pcp.reshard":
            refuse(op, "is cut along a mesh already; stage it first")
        if op.name == "pcp.constraint":
            _check_axes(op, from_attribute(op.attributes["sharding"]), mesh)
        if SHARDING in op.attributes:
            del op.attributes[SHARDING]


def _check_axes(op: ir.Operation, layout: Layout, mesh: Mesh) -> None:
    for axis in layout.axes:
        if axis not in mesh.axes:
            known = ", ".join(mesh.axes) or "none"
            refuse(
                op,
                f'is to be cut along "{axis}"; what a stage holds can be cut along '
                f"the other axes of the mesh ({known})",
            )


def _without_hints(function: ir.Operation) -> None:
    """Take out what only says how tensors are to lie."""
    for op in list(walk(block_of(function, 0))):
        if op.name in HINTS:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def is_fed(function: ir.Operation) -> bool:
    """Whether the function takes data that has a batch to cut."""
    return _batch(function) is not None


def _batch(function: ir.Operation) -> int | None:
    """The first dimension of the first data argument that has one."""
    for argument, said in zip(
        entry(function).arguments, argument_attributes(function), strict=True
    ):
        type_ = ir.RankedTensorType(argument.type)
        if string(said, ROLE) == "data" and type_.rank:
            return type_.shape[0]
    return None


def _annotate(function: ir.Operation, mesh: Mesh, whole: Mesh) -> None:
    """Ports as asked for along the axes of `mesh`: the virtual one, or `whole`.

    Data of the batch's size is cut along the virtual axis, if it has several members:
    what is made of uncut data alone, each stage makes itself. Along the axes that cut
    data nothing else is: a parameter that is cut so (ZeRO-3) is gathered to be used,
    and does not make activations follow it.
    """
    batch = _batch(function)
    inputs, results = _ports(function, whole)
    roles = [string(said, ROLE) for said in argument_attributes(function)]
    if AXIS in mesh.axes:
        for k, (role, argument) in enumerate(
            zip(roles, entry(function).arguments, strict=True)
        ):
            shape = tuple(ir.RankedTensorType(argument.type).shape)
            rest: tuple[Axes, ...] = ((),) * len(shape)
            several = mesh.axes[AXIS] > 1
            if several and role == "data" and batch and shape[:1] == (batch,):
                _check_even(function, whole.parts(batch, inputs[k].dims[0]), mesh)
                rest = ((AXIS,), *rest[1:])
            inputs[k] = Layout(rest)
        results = [Layout.replicated(len(layout.dims)) for layout in results]
    else:
        pairs = list(zip(roles, inputs, strict=True))
        busy = {a for role, x in pairs if role in GIVEN for a in x.axes}
        inputs = [x if role in GIVEN else x.without(busy) for role, x in pairs]
        results = [layout.without(busy) for layout in results]
    _set_ports(function, inputs, results, mesh)


def _ports(function: ir.Operation, mesh: Mesh) -> tuple[list[Layout], list[Layout]]:
    """How the arguments and results lie."""
    type_ = function_type(function)
    inputs = _layouts(function, "arg_attrs", list(type_.inputs), mesh)
    return inputs, _layouts(function, "res_attrs", list(type_.results), mesh)


def _set_ports(
    function: ir.Operation,
    inputs: Sequence[Layout],
    results: Sequence[Layout],
    mesh: Mesh,
) -> None:
    for which, layouts in (("arg_attrs", inputs), ("res_attrs", results)):
        attributes = [to_attribute(x, mesh.name) for x in layouts]
        set_port_shardings(function, which, attributes)


def _layouts(
    function: ir.Operation, which: str, types: Sequence[ir.Type], mesh: Mesh
) -> list[Layout]:
    """How the ports lie; `PassError` at an axis that a stage is not cut along."""
    found = []
    given = port_shardings(function, which, len(types))
    for type_, sharding in zip(types, given, strict=True):
        layout = Layout.replicated(ir.RankedTensorType(type_).rank)
        if sharding is not None:
            layout = from_attribute(sharding)
        _check_axes(function, layout, mesh)
        found.append(layout)
    return found


def _check_even(function: ir.Operation, parts: Sequence[int], mesh: Mesh) -> None:
    """Each device's part of the batch is cut into equal microbatches."""
    count = mesh.axes[AXIS]
    uneven = next((n for n in parts if n % count), None)
    if uneven is not None:
        refuse(
            function,
            f"a batch of {uneven} cannot be cut into {count} equal microbatches; "
            f"choose a number that divides {uneven}",
        )
