"""What pcp-partition does alike for all members: how values lie and work is cut."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.core.rewriting import refuse
from pcp.passes.core.walk import CONTROL_FLOW, block_of, returned
from pcp.passes.sharding.factors import (
    Assignment,
    FactorRule,
    assemble,
    operand_layouts,
    project,
)
from pcp.passes.sharding.layout import SHARDING, Layout, from_attribute
from pcp.passes.sharding.local import check_closed
from pcp.passes.sharding.manual import FROM_PART, TO_PART
from pcp.passes.sharding.ports import op_shardings, port_shardings
from pcp.passes.sharding.rules import rule_of


@dataclass
class ShardingPlan:
    """How every value of a function lies and every op's work is cut."""

    function: ir.Operation
    layouts: dict[ir.Value, Layout] = field(default_factory=dict)
    rules: dict[ir.Operation, tuple[FactorRule, Assignment]] = field(
        default_factory=dict
    )

    @classmethod
    def read(cls, function: ir.Operation, mesh: Mesh) -> "ShardingPlan":
        """Read the shardings that stand in the function."""
        plan = cls(function)
        entry = block_of(function, 0)
        given = port_shardings(function, "arg_attrs", len(entry.arguments))
        for argument, sharding in zip(entry.arguments, given, strict=True):
            is_tensor = isinstance(argument.type, ir.RankedTensorType)
            if sharding is None and is_tensor:
                refuse(function, "an argument has no pcp.sharding; propagate first")
            said = Layout(()) if sharding is None else from_attribute(sharding)
            plan.layouts[argument] = said
        plan._block(entry, mesh)
        plan._check_returned(function)
        return plan

    def _check_returned(self, function: ir.Operation) -> None:
        """What the function returns lies as its border says."""
        end = returned(block_of(function, 0))
        given = port_shardings(function, "res_attrs", len(end.operands))
        wanted = [None if said is None else from_attribute(said) for said in given]
        self._check_handed(end, end.operands, wanted)

    def _check_handed(
        self,
        op: ir.Operation,
        values: Sequence[ir.Value],
        wanted: Sequence[Layout | None],
    ) -> None:
        """Values that become others lie as these do."""
        for i, (value, layout) in enumerate(zip(values, wanted, strict=True)):
            own = self.layouts[value]
            if layout is not None and _differ(own, layout):
                refuse(
                    op,
                    f"operand {i} lies {own}, and what it becomes {layout}; run "
                    "pcp-insert-reshards first",
                )

    def _block(self, block: ir.Block, mesh: Mesh) -> None:
        for view in block.operations:
            op = view.operation
            self._op(op, mesh)

    def _op(self, op: ir.Operation, mesh: Mesh) -> None:
        if op.name in CONTROL_FLOW:
            self._control_flow(op, mesh)
        elif op.name == "pcp.reshard":
            self.layouts[op.results[0]] = from_attribute(op.attributes["sharding"])
        elif len(op.results):
            self._results(op)
            if op.name not in (TO_PART, FROM_PART):
                self._rule(op, mesh)

    def _control_flow(self, op: ir.Operation, mesh: Mesh) -> None:
        self._results(op)
        carried = [self.layouts[r] for r in op.results]
        is_loop = op.name == "stablehlo.while"
        if is_loop:
            self._check_handed(op, op.operands, carried)
        for number, region in enumerate(op.regions):
            block = region.blocks[0]
            self.layouts.update(zip(block.arguments, carried, strict=False))
            self._block(block, mesh)
            if not (is_loop and number == 0):  # the condition gives a truth
                end = returned(block)
                self._check_handed(end, end.operands, carried)

    def _results(self, op: ir.Operation) -> None:
        if SHARDING not in op.attributes:
            if not all(isinstance(r.type, ir.RankedTensorType) for r in op.results):
                self.layouts.update((r, Layout(())) for r in op.results)
                return
            refuse(op, f"it has no {SHARDING}; run pcp-propagate-sharding first")
        shardings = op_shardings(op)
        for result, sharding in zip(op.results, shardings, strict=True):
            self.layouts[result] = from_attribute(sharding)

    def _rule(self, op: ir.Operation, mesh: Mesh) -> None:
        rule = rule_of(op)
        tensors = [self.layouts[v] for v in (*op.operands, *op.results)]
        if rule is None:
            if any(not layout.is_replicated for layout in tensors):
                refuse(op, "it can only run whole; run pcp-insert-reshards first")
            return
        assignment: Assignment = {}
        for dims, layout in zip(rule.tensors, tensors, strict=True):
            found, complete = project(rule, dims, layout, mesh)
            clash = any(assignment.get(f, axes) != axes for f, axes in found.items())
            if clash or not complete:
                refuse(op, "its tensors do not fit; run pcp-insert-reshards first")
            assignment |= found
        for i, layout in enumerate(tensors):
            if layout.reduced() not in _possible(rule, i, assignment, mesh):
                refuse(op, "its tensors do not fit; run pcp-insert-reshards first")
        self.rules[op] = rule, assignment
        check_closed(op)


def _differ(one: Layout, other: Layout) -> bool:
    """The order of axes counts in dimensions, not in pending sums."""
    return one.dims != other.dims or set(one.unreduced) != set(other.unreduced)


def _possible(
    rule: FactorRule, tensor: int, assignment: Assignment, mesh: Mesh
) -> Sequence[Layout]:
    """How a tensor, results behind operands, may lie when the work is cut so."""
    if tensor < len(rule.operands):
        return operand_layouts(rule, tensor, assignment, mesh)
    return [assemble(rule, rule.tensors[tensor], assignment, mesh)]
