"""An op as it runs on one member: its parts, its place, a clone of it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.mesh import Mesh
from pcp.passes.sharding.factors import Assignment, FactorRule
from pcp.passes.sharding.layout import SHARDING, Layout
from pcp.passes.sharding.rules.written import RULE

Value = ir.Value


@dataclass(frozen=True)
class Local:
    """An op on one member: how its work is cut, and which part is the member's."""

    op: ir.Operation
    rule: FactorRule
    assignment: Assignment
    layouts: Sequence[Layout]
    mesh: Mesh
    place: dict[str, int]
    #: What was fetched of neighbours so far: ops that look alike share it.
    fetched: dict[Hashable, Value] = field(default_factory=dict)

    def part(self, factor: int) -> tuple[int, int]:
        """(offset, size) of the member's part of a factor."""
        axes = self.assignment.get(factor, ())
        return self.mesh.part(self.rule.sizes[factor], axes, self.place)

    def shape(self, tensor: int) -> tuple[int, ...]:
        """The member's shape of an operand, or behind those of a result."""
        return self.layouts[tensor].local_shape(
            self._whole(tensor), self.mesh, self.place
        )

    def slices(self, tensor: int) -> tuple[slice, ...]:
        """Where in the whole tensor the member's part lies."""
        return self.layouts[tensor].slices(self._whole(tensor), self.mesh, self.place)

    def _whole(self, tensor: int) -> tuple[int, ...]:
        values = (*self.op.operands, *self.op.results)
        return tuple(ir.RankedTensorType(values[tensor].type).shape)

    @property
    def is_whole(self) -> bool:
        """Whether nothing about the op is cut."""
        return not any(self.assignment.values())

    def clone(self, operands: Sequence[Value]) -> ir.Operation:
        """The op on these operands, with the member's result types."""
        copy = self.op.clone().operation
        for name in (SHARDING, RULE):  # of the whole tensors
            if name in copy.attributes:
                del copy.attributes[name]
        for i, operand in enumerate(operands):
            copy.operands[i] = operand
        if not self.is_whole:
            for i, result in enumerate(copy.results):
                shape = self.shape(len(self.op.operands) + i)
                result.set_type(hlo.tensor(shape, hlo.element_type(result)))
        return copy


#: The op's results on the member from its local operands.
Adjust = Callable[[Local, Sequence[Value]], Sequence[Value]]
