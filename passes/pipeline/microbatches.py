"""Microbatches as a mesh of their own, whose members come one after the other.

Data is cut along the virtual axis, parameters are whole. Where propagation and
resharding then leave nothing to exchange but sums at the end, the microbatches
separate: each runs its part, and their partial results are added.
"""

from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.functions import ROLE, argument_attributes, entry, function_type, string
from pcp.passes.insert_reshards import Resharder
from pcp.passes.partition import Plan
from pcp.passes.propagate_sharding import (
    PropagateSharding,
    port_shardings,
    set_port_shardings,
)
from pcp.passes.rewriting import functions, refuse
from pcp.passes.sharding.flow import block_of, walk
from pcp.passes.sharding.layout import SHARDING, Layout, from_attribute, to_attribute
from pcp.passes.sharding.resharding import steps

AXIS, MESH = "microbatch", "microbatches"

_NEVER = 1e30


@dataclass(frozen=True)
class Separated:
    """A function whose data is cut along the virtual axis.

    `partial` are the values of which each microbatch has a summand.
    """

    module: ir.Module
    function: ir.Operation
    mesh: Mesh
    plan: Plan
    partial: set[ir.Value]


class _OneByOne(Resharder):
    """Members that come one after the other can add, and talk in no other way."""

    def price_of(
        self, old: Layout, new: Layout, shape: tuple[int, ...], width: int
    ) -> float:
        """Bytes to add up; as good as never what would be an exchange."""
        kinds = {step.kind for step in steps(old, new, shape, self.mesh)}
        far = kinds - {"all_reduce", "slice"}
        return super().price_of(old, new, shape, width) + (_NEVER if far else 0.0)


def separate(function: ir.Operation, count: int) -> Separated:
    """A copy of the function as it runs in `count` microbatches, not yet cut up.

    Raises `PassError` at the first op that needs more than its microbatch.
    """
    _check_whole(function)
    mesh = Mesh(MESH, {AXIS: count})
    with function.location:
        module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        axes = f'axes = [#pcp.axis<"{AXIS}", {count}>], devices = []'
        text = f'"pcp.mesh"() {{{axes}, sym_name = "{MESH}"}} : () -> ()'
        ir.InsertionPoint(module.body).insert(
            ir.Operation.parse(text, context=function.context)
        )
        copy = function.clone().operation
    _annotate(copy, count)
    PropagateSharding().run(module)
    (copy,) = functions(module)
    _OneByOne(mesh).function(copy)
    plan = Plan.read(copy, mesh)
    partial = _check_separate(copy, plan, mesh)
    return Separated(module, copy, mesh, plan, partial)


def _check_whole(function: ir.Operation) -> None:
    """Nothing of the program is cut already."""
    type_ = function_type(function)
    for which, count in (
        ("arg_attrs", len(type_.inputs)),
        ("res_attrs", len(type_.results)),
    ):
        for sharding in port_shardings(function, which, count):
            if sharding is not None and not from_attribute(sharding).is_replicated:
                refuse(function, "is cut along a mesh already; stage it first")
    for op in walk(block_of(function, 0)):
        if op.name in ("pcp.constraint", "pcp.reshard"):
            refuse(op, "stages take whole tensors; leave shardings out")
        if SHARDING in op.attributes:
            del op.attributes[SHARDING]


def batch_size(function: ir.Operation) -> int:
    """The first dimension of the first data argument that has one."""
    for argument, said in zip(
        entry(function).arguments, argument_attributes(function), strict=True
    ):
        type_ = ir.RankedTensorType(argument.type)
        if string(said, ROLE) == "data" and type_.rank:
            return type_.shape[0]
    refuse(function, "no argument has the role data and a batch to cut")


def _annotate(function: ir.Operation, count: int) -> None:
    """Data of the batch's size is cut, everything else is whole."""
    batch = batch_size(function)
    if batch % count:
        refuse(
            function,
            f"a batch of {batch} cannot be cut into {count} equal microbatches; "
            f"choose a number that divides {batch}",
        )
    roles = [string(said, ROLE) for said in argument_attributes(function)]
    type_ = function_type(function)
    inputs = []
    for role, given in zip(roles, type_.inputs, strict=True):
        shape = ir.RankedTensorType(given).shape
        cut = role == "data" and len(shape) > 0 and shape[0] == batch
        rest = ((),) * (len(shape) - 1)
        inputs.append(
            Layout(((AXIS,), *rest)) if cut else Layout.replicated(len(shape))
        )
    ranks = [ir.RankedTensorType(t).rank for t in type_.results]
    results = [Layout.replicated(rank) for rank in ranks]
    for which, layouts in (("arg_attrs", inputs), ("res_attrs", results)):
        set_port_shardings(function, which, [to_attribute(x, MESH) for x in layouts])


def _check_separate(function: ir.Operation, plan: Plan, mesh: Mesh) -> set[ir.Value]:
    """The partial sums; `PassError` where members would have to talk otherwise."""
    body = block_of(function, 0)
    partial = set()
    for op in walk(body):
        if op in plan.rules:
            rule, assignment = plan.rules[op]
            if any(kind != "sum" for kind in rule.reductions(assignment)):
                refuse(op, _inseparable("takes an extremum over the batch"))
        if op.name != "pcp.reshard":
            continue
        source = op.operands[0]
        old, new = plan.layouts[source], plan.layouts[op.results[0]]
        shape = tuple(ir.RankedTensorType(source.type).shape)
        kinds = {step.kind for step in steps(old, new, shape, mesh)}
        if kinds == {"all_reduce"} and op.block == body:
            partial.add(source)
        elif kinds - {"slice"}:
            user = next((u.owner.operation for u in op.results[0].uses), op)
            refuse(user, _inseparable("needs the whole batch"))
    return partial


def _inseparable(why: str) -> str:
    return (
        f"microbatches do not separate here: it {why}; use one microbatch, or a "
        "model that treats examples one by one"
    )
