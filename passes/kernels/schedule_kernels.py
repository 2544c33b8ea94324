"""pcp-schedule-kernels: contractions with tiles that suit a processor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, operations
from pcp.passes.core.rewriting import replace as put
from pcp.passes.kernels.contractions import Contraction, contraction_of, is_f32
from pcp.passes.kernels.linalg import (
    foreign,
    in_panels,
    panel_product,
    product,
    turned,
)
from pcp.passes.kernels.tiles import KernelTiles, Schedule, schedule_for
from pcp.passes.kernels.tuned import parse

Measured = Mapping[Contraction, Schedule | None]
#: Operands that lie otherwise, by the value, the block where it is needed, and how.
Laid = dict[tuple[ir.Value, ir.Block, str], ir.Value]


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
    own. With registers of 256 bits the right operand of many rows is put into panels,
    so that the rows that a register tile reads follow each other.
    Before and after `pcp-schedule-kernels{vector=512}`:

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
            found: Laid = {}
            for op in operations(module):
                if op.name == "stablehlo.dot_general" and is_f32(op):
                    self._schedule(op, measured, found)

    def _schedule(self, op: ir.Operation, measured: Measured, found: Laid) -> None:
        if (shape := contraction_of(op)) is None:
            return
        if shape in measured:
            schedule = measured[shape]
        else:
            schedule = schedule_for(shape, self.vector, self.far)
        if schedule is not None:
            tile(op, shape, schedule, found)


def tile(op: ir.Operation, shape: Contraction, schedule: Schedule, found: Laid) -> None:
    """Write the product `op` as `schedule` says; `found` are operands turned before."""
    with before(op):
        left = _as(op.operands[0], shape.left)
        right = _as(op.operands[1], shape.right)
        if schedule.turned:
            right, shape = _turned(op, right, found), replace(shape, form="NN")
        if schedule.panels:
            value = _with_panels(op, shape, left, right, schedule.tiles, found)
        else:
            value = product(shape, left, right, schedule.tiles)
        put(op, [_as(value, hlo.shape_of(op.result))])


def _as(value: ir.Value, shape: list[int] | tuple[int, ...]) -> ir.Value:
    same = list(hlo.shape_of(value)) == list(shape)
    return value if same else hlo.reshape(value, shape)


def _with_panels(
    op: ir.Operation,
    shape: Contraction,
    left: ir.Value,
    right: ir.Value,
    tiles: KernelTiles,
    found: Laid,
) -> ir.Value:
    if shape.form[0] == "T":
        left, shape = _turned(op, left, found), replace(shape, form=f"N{shape.form[1]}")
    how = f"{shape.form[1]} in panels of {tiles.columns}"

    def lay(value: ir.Value) -> ir.Value:
        return in_panels(shape, value, tiles.columns)

    return panel_product(shape, left, _once(op, right, how, found, lay), tiles)


def _turned(op: ir.Operation, value: ir.Value, found: Laid) -> ir.Value:
    return _once(op, value, "turned", found, turned)


def _once(
    op: ir.Operation,
    value: ir.Value,
    how: str,
    found: Laid,
    lay: Callable[[ir.Value], ir.Value],
) -> ir.Value:
    """An operand that lies otherwise, once for all products of a block."""
    key = (value, op.block, how)
    if key not in found:
        found[key] = lay(value)
    return found[key]
