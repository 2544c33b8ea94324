"""Whether microbatches separate: nothing is exchanged between them but sums."""

from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.core.rewriting import refuse
from pcp.passes.core.walk import block_of, walk
from pcp.passes.pipeline.flow import AXIS, TAIL, Flow
from pcp.passes.sharding.halo import Exchange
from pcp.passes.sharding.plan import ShardingPlan
from pcp.passes.sharding.resharding import steps


def summed(function: ir.Operation, plan: ShardingPlan, mesh: Mesh) -> set[ir.Value]:
    """The values of which each microbatch has a summand.

    `PassError` where microbatches would have to talk otherwise.
    """
    body = block_of(function, 0)
    partial = set()
    for op in walk(body):
        if op in plan.rules:
            _check_joins(op, plan)
            _check_reaches(op, plan, mesh)
        if op.name != "pcp.reshard":
            continue
        source = op.operands[0]
        old, new = plan.layouts[source], plan.layouts[op.results[0]]
        shape = tuple(ir.RankedTensorType(source.type).shape)
        found = [step for step in steps(old, new, shape, mesh) if AXIS in step.axes]
        if [step.kind for step in found] == ["all_reduce"] and op.block == body:
            partial.add(source)
        elif any(step.kind != "slice" for step in found):
            _refuse(_user(op), "needs the whole batch")
    return partial


def _check_joins(op: ir.Operation, plan: ShardingPlan) -> None:
    """Of what is made of all examples only a sum has summands."""
    rule, assignment = plan.rules[op]
    for kind, axes in rule.reductions(assignment).items():
        if kind != "sum" and AXIS in axes:
            what = "multiplies" if kind == "prod" else "takes an extremum"
            _refuse(op, f"{what} over the batch")


def _check_reaches(op: ir.Operation, plan: ShardingPlan, mesh: Mesh) -> None:
    """Each microbatch holds all that its part of the result is made of."""
    rule, assignment = plan.rules[op]
    for reach in rule.reaches:
        axes = assignment.get(reach.factor, ())
        held = plan.layouts[op.operands[reach.operand]].dims[reach.dim]
        size = rule.sizes[reach.factor]
        if AXIS in axes and Exchange.of(reach, size, axes, mesh, held).rounds:
            _refuse(op, "moves examples along the batch")


def _user(op: ir.Operation) -> ir.Operation:
    """The first op of the program that reads what a reshard gives."""
    while op.name == "pcp.reshard" and (use := next(op.results[0].uses, None)):
        op = use.owner.operation
    return op


def check_tail(flow: Flow, plan: ShardingPlan) -> None:
    """`PassError` where what needs a sum over all microbatches is a part of one."""
    for number, kind in enumerate(flow.kinds):
        if kind != TAIL:
            continue
        op = flow.ops[number]
        layouts = [plan.layouts[v] for v in (*flow.reads[number], *op.results)]
        own = any(AXIS in (*layout.axes, *layout.unreduced) for layout in layouts)
        if own or flow.mains(number):
            why = "joins examples with a sum over the batch, of more than data"
            _refuse(_user(op), why)


def _refuse(op: ir.Operation, why: str) -> None:
    refuse(
        op,
        f"microbatches do not separate here: it {why}; leave pp out of the mesh, or "
        "treat examples one by one",
    )
