"""pcp-promote-products: products of narrow floats by f32's instructions."""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.narrow_floats import is_narrow
from pcp.passes.core.rewriting import before, operations
from pcp.passes.kernels.contractions import contraction_of
from pcp.passes.kernels.linalg import foreign, kernel

REUSED = 16
"""Rows and columns from which a kernel reads an operand often enough to convert it."""

#: Operands in f32, by the value and the block where they are needed.
Promoted = dict[tuple[ir.Value, ir.Block], ir.Value]


@dataclass(frozen=True)
class PromoteProducts(Pass):
    """Give products of bf16 and f16 their operands in f32, each converted once.

    Assumes what pcp-legalize leaves: such a product's result is f32. A processor
    without instructions for narrow products converts their operands for each tile
    again, which takes longer than the product. Products in which few rows meet a
    matrix stay: they read it once. The numbers are the same, but for the order of sums.
    Before and after:

        %0 = stablehlo.dot_general %x, %w, ...
            : (tensor<2048x256xbf16>, tensor<256x768xbf16>) -> tensor<2048x768xf32>

        %a = "flow.dispatch.region"() ({ stablehlo.convert %x ... })
        %b = "flow.dispatch.region"() ({ stablehlo.convert %w ... })
        %0 = stablehlo.dot_general %a, %b, ...
            : (tensor<2048x256xf32>, tensor<256x768xf32>) -> tensor<2048x768xf32>
    """

    name = "pcp-promote-products"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        with foreign(module.context):
            promoted: Promoted = {}
            for op in operations(module):
                if op.name == "stablehlo.dot_general" and _is_slow(op):
                    with before(op):
                        _promote(op, promoted)


def _is_slow(op: ir.Operation) -> bool:
    """Whether all operands are narrow, the result is f32, and kernels reuse them."""
    if not all(is_narrow(hlo.element_type(x)) for x in op.operands):
        return False
    if not isinstance(hlo.element_type(op.result), ir.F32Type):
        return False
    shape = contraction_of(op)
    return shape is None or min(shape.rows, shape.columns) >= REUSED


def _promote(op: ir.Operation, promoted: Promoted) -> None:
    for i, x in enumerate(list(op.operands)):
        key = (x, op.block)
        if key not in promoted:
            promoted[key] = _wide(x)
        op.operands[i] = promoted[key]


def _wide(x: ir.Value) -> ir.Value:
    f32 = ir.F32Type.get()
    return kernel(hlo.like(x, element=f32), lambda: hlo.convert(x, f32))
