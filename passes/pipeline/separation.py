"""Whether microbatches separate: nothing is exchanged between them but sums."""

from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.pipeline.flow import AXIS, TAIL, Flow
from pcp.passes.rewriting import refuse
from pcp.passes.sharding.flow import block_of, walk
from pcp.passes.sharding.plan import Plan
from pcp.passes.sharding.resharding import steps


def summed(function: ir.Operation, plan: Plan, mesh: Mesh) -> set[ir.Value]:
    """The values of which each microbatch has a summand.

    `PassError` where microbatches would have to talk otherwise.
    """
    body = block_of(function, 0)
    partial = set()
    for op in walk(body):
        if op in plan.rules:
            rule, assignment = plan.rules[op]
            joined = rule.reductions(assignment).items()
            if any(kind != "sum" and AXIS in axes for kind, axes in joined):
                _refuse(op, "takes an extremum over the batch")
        if op.name != "pcp.reshard":
            continue
        source = op.operands[0]
        old, new = plan.layouts[source], plan.layouts[op.results[0]]
        shape = tuple(ir.RankedTensorType(source.type).shape)
        found = [step for step in steps(old, new, shape, mesh) if AXIS in step.axes]
        if [step.kind for step in found] == ["all_reduce"] and op.block == body:
            partial.add(source)
        elif any(step.kind != "slice" for step in found):
            user = next((u.owner.operation for u in op.results[0].uses), op)
            _refuse(user, "needs the whole batch")
    return partial


def check_tail(flow: Flow, plan: Plan) -> None:
    """`PassError` where what needs a sum over all microbatches is a part of one."""
    for number, kind in enumerate(flow.kinds):
        if kind != TAIL:
            continue
        op = flow.ops[number]
        layouts = [plan.layouts[v] for v in (*flow.reads[number], *op.results)]
        if flow.mains(number) or any(AXIS in layout.axes for layout in layouts):
            _refuse(op, "joins examples with a sum over the batch, of more than data")


def _refuse(op: ir.Operation, why: str) -> None:
    refuse(
        op,
        f"microbatches do not separate here: it {why}; leave pp out of the mesh, or "
        "treat examples one by one",
    )
