"""What pcp-partition does alike for all members: how values lie and work is cut."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.rewriting import refuse
from pcp.passes.sharding.factors import (
    Assignment,
    Rule,
    assemble,
    operand_layouts,
    project,
)
from pcp.passes.sharding.flow import CONTROL_FLOW, block_of
from pcp.passes.sharding.layout import SHARDING, Layout, from_attribute
from pcp.passes.sharding.local import check_closed
from pcp.passes.sharding.manual import FROM_PART, TO_PART
from pcp.passes.sharding.ports import port_shardings
from pcp.passes.sharding.rules import rule_of


@dataclass
class Plan:
    """How every value of a function lies and every op's work is cut."""

    function: ir.Operation
    layouts: dict[ir.Value, Layout] = field(default_factory=dict)
    rules: dict[ir.Operation, tuple[Rule, Assignment]] = field(default_factory=dict)

    @classmethod
    def read(cls, function: ir.Operation, mesh: Mesh) -> "Plan":
        """Read the shardings that stand in the function."""
        plan = cls(function)
        entry = block_of(function, 0)
        given = port_shardings(function, "arg_attrs", len(entry.arguments))
        for argument, sharding in zip(entry.arguments, given, strict=True):
            if sharding is None:
                refuse(function, "an argument has no pcp.sharding; propagate first")
            plan.layouts[argument] = from_attribute(sharding)
        plan._block(entry, mesh)
        return plan

    def _block(self, block: ir.Block, mesh: Mesh) -> None:
        for view in block.operations:
            op = view.operation
            self._op(op, mesh)

    def _op(self, op: ir.Operation, mesh: Mesh) -> None:
        if op.name in CONTROL_FLOW:
            self._results(op)
            for region in op.regions:
                carried = [self.layouts[r] for r in op.results]
                arguments = region.blocks[0].arguments
                self.layouts.update(zip(arguments, carried, strict=False))
                self._block(region.blocks[0], mesh)
        elif op.name == "pcp.reshard":
            self.layouts[op.results[0]] = from_attribute(op.attributes["sharding"])
        elif len(op.results):
            self._results(op)
            if op.name not in (TO_PART, FROM_PART):
                self._rule(op, mesh)

    def _results(self, op: ir.Operation) -> None:
        if SHARDING not in op.attributes:
            if not all(isinstance(r.type, ir.RankedTensorType) for r in op.results):
                self.layouts.update((r, Layout(())) for r in op.results)
                return
            refuse(op, f"it has no {SHARDING}; run pcp-propagate-sharding first")
        shardings = ir.ArrayAttr(op.attributes[SHARDING])
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


def _possible(
    rule: Rule, tensor: int, assignment: Assignment, mesh: Mesh
) -> Sequence[Layout]:
    """How a tensor, results behind operands, may lie when the work is cut so."""
    if tensor < len(rule.operands):
        return operand_layouts(rule, tensor, assignment, mesh)
    return [assemble(rule, rule.tensors[tensor], assignment, mesh)]
