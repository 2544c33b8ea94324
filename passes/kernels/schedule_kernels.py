"""pcp-schedule-kernels: contractions with tiles that suit a processor."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, operations
from pcp.passes.core.rewriting import replace as put
from pcp.passes.kernels.contractions import Contraction, contraction_of
from pcp.passes.kernels.linalg import foreign, product, turned
from pcp.passes.kernels.tiles import Schedule, schedule_for
from pcp.passes.kernels.tuned import parse

Measured = Mapping[Contraction, Schedule | None]
#: Transposed right operands, by the value and the block where it is needed.
Turned = dict[tuple[ir.Value, ir.Block], ir.Value]


@dataclass(frozen=True)
class ScheduleKernels(Pass):
    """Write f32 products as `linalg` ops that carry IREE's tiles.

    Assumes what pcp-legalize leaves; `vector` is the bits of the processor's vector
    registers, `far` the steps of a sum side by side where rows of the right operand lie
    4 KiB apart. Where the table of `passes/kernels/tiles.py` has nothing for a product,
    it stays a dot_general, and IREE chooses. Sums add in the order of their terms.
    What `tuned` says of a product (`passes/kernels/tuned.py`), as `pcp tune` measured
    it, holds before the table.
    With wide registers a transposed right operand, as a linear layer's weights are, is
    transposed in memory first: once for all products of a block, by a kernel of its
    own. Before and after `pcp-schedule-kernels{vector=512}`:

        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
            : (tensor<2048x256xf32>, tensor<768x256xf32>) -> tensor<2048x768xf32>

        %h = "flow.dispatch.region"() ({ linalg.transpose ins(%w) ... })
        %0 = linalg.matmul {compilation_info = #iree_codegen.compilation_info<...>}
            ins(%x, %h : tensor<2048x256xf32>, tensor<256x768xf32>)
            outs(%zeros : tensor<2048x768xf32>) -> tensor<2048x768xf32>
    """

    name = "pcp-schedule-kernels"
    vector: int
    far: int = 1
    tuned: str = ""

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        measured = parse(self.tuned)
        with foreign(module.context):
            found: Turned = {}
            for op in operations(module):
                if op.name == "stablehlo.dot_general" and is_f32(op):
                    self._schedule(op, measured, found)

    def _schedule(self, op: ir.Operation, measured: Measured, found: Turned) -> None:
        if (shape := contraction_of(op)) is None:
            return
        if shape in measured:
            schedule = measured[shape]
        else:
            schedule = schedule_for(shape, self.vector, self.far)
        if schedule is not None:
            tile(op, shape, schedule, found)


def tile(
    op: ir.Operation, shape: Contraction, schedule: Schedule, found: Turned
) -> None:
    """Write the product `op` as `schedule` says; `found` are operands turned before."""
    with before(op):
        left = _as(op.operands[0], shape.left)
        right = _as(op.operands[1], shape.right)
        if schedule.turned:
            right, shape = _once(op, right, found), replace(shape, form="NN")
        value = product(shape, left, right, schedule.tiles)
        put(op, [_as(value, hlo.shape_of(op.result))])


def is_f32(op: ir.Operation) -> bool:
    """Whether all of it is f32, computed as f32."""
    types = [hlo.element_type(value) for value in (*op.operands, op.result)]
    return all(isinstance(t, ir.F32Type) for t in types) and (
        "algorithm" not in op.attributes
    )


def _as(value: ir.Value, shape: list[int] | tuple[int, ...]) -> ir.Value:
    same = list(hlo.shape_of(value)) == list(shape)
    return value if same else hlo.reshape(value, shape)


def _once(op: ir.Operation, right: ir.Value, found: Turned) -> ir.Value:
    key = (right, op.block)
    if key not in found:
        found[key] = turned(right)
    return found[key]
