"""pcp-zero: optimizer state, gradients and parameters cut along the data axis."""

from collections.abc import Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.layout import Layout
from pcp.mesh import Mesh
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import ROLE, function_type
from pcp.passes.core.narrow_floats import is_narrow
from pcp.passes.core.rewriting import before, functions
from pcp.passes.core.walk import block_of, returned
from pcp.passes.sharding.late import REGATHER
from pcp.passes.sharding.layout import from_attribute, to_attribute
from pcp.passes.sharding.mesh import only_mesh
from pcp.passes.sharding.ports import port_shardings, set_port_shardings

#: The mesh axis whose members hold other tensors of the program, not copies.
PIPELINE = "pp"

#: Which roles each stage cuts (Rajbhandari et al., arXiv:1910.02054).
CUT = {
    1: ("state",),
    2: ("state", "grad"),
    3: ("state", "grad", "param", "anchor", "outer", "private"),
}


@dataclass(frozen=True)
class Zero(Pass):
    """Cut what training keeps along a data axis: ZeRO stage 1, 2 or 3.

    By the roles of arguments and results (`pcp.role`), in every function alike:
    stage 1 cuts the optimizer's state, stage 2 the gradients too, stage 3 (FSDP) the
    parameters too. A tensor is cut in its first dimension that the axis divides and
    nothing else cuts, or that at least has room; one without such a dimension stays
    whole. pcp-propagate-sharding and pcp-partition then make a reduce_scatter of the
    gradients' all_reduce, an update of the own part, and all_gathers.

    Under stage 3 a function that is given data uses its parameters through
    `pcp.constraint`s without the axis, and gives its gradients through
    `pcp.barrier_prop`s: the cut is how they are kept, and spreads no further.
    Parameters are gathered again for a later layer's use, unless `regather=false`.
    With `contain=true` gradients are given so under stage 2 too, and a tensor whose
    dimensions are all cut, or too small, is cut once more where another axis cuts it.

    Before, in a module with `pcp.mesh @m` of dp=2:

        func.func @apply(%w: tensor<8xf32> {pcp.role = "param"},
            %m: tensor<8xf32> {pcp.role = "state"}, ...)

    After pcp-zero{stage=1}:

        func.func @apply(%w: tensor<8xf32> {pcp.role = "param", pcp.sharding =
            #pcp.sharding<@m, [[]], [], []>}, %m: tensor<8xf32> {pcp.role = "state",
            pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}, ...)
    """

    name = "pcp-zero"
    stage: int = 1
    axis: str = "dp"
    regather: bool = True
    contain: bool = False

    def run(self, module: ir.Module) -> None:
        """Annotate the borders of all functions."""
        if self.stage not in CUT:
            raise PassError(
                f"pcp-zero: stage={self.stage}; there are stages 1, 2 and 3"
            )
        with module.context:
            mesh = only_mesh(module)
            if "param" in CUT[self.stage] and self.regather:
                module.operation.attributes[REGATHER] = ir.UnitAttr.get()
            if self.axis not in mesh.axes:
                known = ", ".join(mesh.axes)
                raise PassError(
                    f'pcp-zero: mesh @{mesh.name} has no axis "{self.axis}" ({known})'
                )
            found = sum(
                self._annotate(function, which, mesh)
                for function in functions(module)
                for which in ("arg_attrs", "res_attrs")
            )
            if "param" in CUT[self.stage] or self.contain:
                for function in functions(module):
                    self._contain(function, mesh)
            if not found:
                raise PassError(
                    "pcp-zero: no argument or result has a role that stage "
                    f"{self.stage} cuts ({', '.join(CUT[self.stage])}); run "
                    "pcp-expand-training first"
                )

    def _annotate(self, function: ir.Operation, which: str, mesh: Mesh) -> int:
        """Write the layouts of one side of the border; how many roles were met."""
        type_ = function_type(function)
        types = list(type_.inputs if which == "arg_attrs" else type_.results)
        roles = _roles(function, which, len(types))
        given = port_shardings(function, which, len(types))
        new = []
        for port, role, old in zip(types, roles, given, strict=True):
            shape = tuple(ir.RankedTensorType(port).shape)
            layout = from_attribute(old) if old else Layout.replicated(len(shape))
            if role in CUT[self.stage]:
                layout = self._cut(layout, shape, mesh)
            kept = role in CUT[3] or old is not None
            new.append(to_attribute(layout, mesh.name) if kept else None)
        set_port_shardings(function, which, new)
        return sum(role in CUT[self.stage] for role in roles)

    def _cut(self, layout: Layout, shape: tuple[int, ...], mesh: Mesh) -> Layout:
        choose = cut_again if self.contain else cut
        return choose(layout, shape, self.axis, mesh)

    def _contain(self, function: ir.Operation, mesh: Mesh) -> None:
        """Keep the cut of parameters and gradients out of what is computed."""
        entry = block_of(function, 0)
        roles = _roles(function, "arg_attrs", len(entry.arguments))
        if "data" not in roles:
            return
        given = port_shardings(function, "arg_attrs", len(roles))
        for argument, role, sharding in zip(
            list(entry.arguments), roles, given, strict=True
        ):
            if role in CUT[self.stage] and role == "param" and sharding is not None:
                whole = from_attribute(sharding).without([self.axis])
                _constrain_uses(argument, to_attribute(whole, mesh.name))
        end = returned(entry)
        roles = _roles(function, "res_attrs", len(end.operands))
        for i, role in enumerate(roles):
            if role == "grad":
                direction = {"direction": ir.StringAttr.get("none")}
                barrier = _annotated("barrier_prop", end, end.operands[i], direction)
                end.operands[i] = barrier


@dataclass(frozen=True)
class ShareUpdates(Pass):
    """Give members whose code rounds differently a share of each update.

    Where the devices along an axis of the mesh have unlike targets, members that all
    update the same parameters drift apart. Along each such axis this cuts gradients
    and the optimizer's state as pcp-zero{stage=2 contain=true}, what is cut already
    left as it is: a member updates its part, and a gather gives all of them the same
    bits. A reduce_scatter and an all_gather take the bytes of the all_reduce that they
    stand for. Does nothing to members that are alike, along the pipeline's axis
    "pp", and in a program that updates nothing.

    Before, in a module with `pcp.mesh @m` of dp=2 over devices of unlike targets:

        func.func @apply(%w: tensor<8xf32> {pcp.role = "param"},
            %g: tensor<8xf32> {pcp.role = "grad"})

    After:

        func.func @apply(%w: tensor<8xf32> {pcp.role = "param", pcp.sharding =
            #pcp.sharding<@m, [[]], [], []>}, %g: tensor<8xf32> {pcp.role = "grad",
            pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>})
    """

    name = "pcp-share-updates"

    def run(self, module: ir.Module) -> None:
        """Annotate the borders of all functions."""
        for axis in unshared(module):
            Zero(stage=2, axis=axis, contain=True).run(module)


def unshared(module: ir.Module) -> list[str]:
    """The axes along which unlike members would make the same updates."""
    with module.context:
        mesh = only_mesh(module)
        sides = [
            [_ports(function, which) for which in ("arg_attrs", "res_attrs")]
            for function in functions(module)
        ]
    if not any(all("param" in _roles_of(side) for side in pair) for pair in sides):
        return []  # no function gives other parameters than it was given
    kept = [port for pair in sides for side in pair for port in side]
    wanted = [(shape, at) for role, shape, at in kept if role in CUT[2]]
    return [
        axis
        for axis in mesh.axes
        if axis in mesh.unlike - {PIPELINE}
        and any(cut_again(at, shape, axis, mesh) != at for shape, at in wanted)
    ]


#: Role, shape, and how it lies.
Port = tuple[str, tuple[int, ...], Layout]


def _ports(function: ir.Operation, which: str) -> list[Port]:
    type_ = function_type(function)
    types = list(type_.inputs if which == "arg_attrs" else type_.results)
    shapes = [tuple(ir.RankedTensorType(port).shape) for port in types]
    given = port_shardings(function, which, len(types))
    layouts = [
        Layout.replicated(len(shape)) if said is None else from_attribute(said)
        for shape, said in zip(shapes, given, strict=True)
    ]
    roles = _roles(function, which, len(types))
    return list(zip(roles, shapes, layouts, strict=True))


def _roles_of(side: Sequence[Port]) -> set[str]:
    return {role for role, _, _ in side}


def _constrain_uses(value: ir.Value, sharding: ir.Attribute) -> None:
    """A `pcp.constraint` in front of each op that uses the value.

    A master that is rounded (`pcp-master-weights`) is gathered as what it is rounded
    to: half the bytes.
    """
    for user in list({use.owner.operation for use in value.uses}):
        rounds = user.name == "stablehlo.convert"
        if rounds and is_narrow(hlo.element_type(user.result)):
            _constrain_uses(user.result, sharding)
            continue
        inner = _annotated("constraint", user, value, {"sharding": sharding})
        for i, operand in enumerate(list(user.operands)):
            if operand == value:
                user.operands[i] = inner


def _annotated(
    kind: str, user: ir.Operation, value: ir.Value, attributes: dict[str, ir.Attribute]
) -> ir.Value:
    """`pcp.<kind>` of the value, in front of its user."""
    with before(user):
        return ir.Operation.create(
            f"pcp.{kind}",
            operands=[value],
            results=[value.type],
            attributes=attributes,
        ).results[0]


def cut(layout: Layout, shape: Sequence[int], axis: str, mesh: Mesh) -> Layout:
    """The layout with `axis` on the first dimension that it divides, or fits."""
    if axis in layout.axes:
        return layout
    free = [d for d, axes in enumerate(layout.dims) if not axes]
    members = mesh.axes[axis]
    even = [d for d in free if shape[d] and shape[d] % members == 0]
    fits = even or [d for d in free if shape[d] >= members]
    if not fits:
        return layout
    dims = list(layout.dims)
    dims[fits[0]] = (axis,)
    return Layout(tuple(dims))


def cut_again(layout: Layout, shape: Sequence[int], axis: str, mesh: Mesh) -> Layout:
    """As `cut`, or on a dimension that other axes cut; each member has some of it."""
    if axis in layout.axes:
        return layout
    made = [
        Layout((*layout.dims[:d], (*axes, axis), *layout.dims[d + 1 :]))
        for d, axes in enumerate(layout.dims)
        if mesh.fills(shape[d], (*axes, axis))
    ]
    made.sort(key=lambda new: _preference(new, layout, shape, mesh))
    return made[0] if made else layout


def _preference(
    new: Layout, old: Layout, shape: Sequence[int], mesh: Mesh
) -> tuple[bool, bool]:
    """Free dimensions first, of these the ones that fall into equal parts."""
    d = next(d for d, axes in enumerate(new.dims) if axes != old.dims[d])
    return bool(old.dims[d]), not mesh.is_even(shape[d], new.dims[d])


def _roles(function: ir.Operation, which: str, count: int) -> list[str]:
    if which not in function.attributes:
        return [""] * count
    return [
        ir.StringAttr(entry[ROLE]).value if ROLE in entry else ""
        for entry in map(ir.DictAttr, ir.ArrayAttr(function.attributes[which]))
    ]
