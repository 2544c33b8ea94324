"""`pcp-isolate-gathers`: keep a gather out of the kernel that uses its result.

IREE's SPIR-V code generator vectorizes a reduction over gathered elements by
unrolling it: 2048 of them keep it busy for longer than anyone waits. The picking
of the labels' logits in a cross entropy is such a reduction.
"""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import operations


@dataclass(frozen=True)
class IsolateGathers(Pass):
    """Put a barrier behind each gather, which IREE does not fuse across.

    Assumes nothing; leaves the same numbers. Before and after:

        %0 = "stablehlo.gather"(%table, %i) ... -> tensor<8xf32>
        %1 = stablehlo.reduce(%0 init: %zero) ...

        %0 = "stablehlo.gather"(%table, %i) ... -> tensor<8xf32>
        %b = stablehlo.optimization_barrier %0 : tensor<8xf32>
        %1 = stablehlo.reduce(%b init: %zero) ...
    """

    name = "pcp-isolate-gathers"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        for op in operations(module):
            if op.name == "stablehlo.gather":
                _isolate(op)


def _isolate(gather: ir.Operation) -> None:
    result = gather.results[0]
    users = [(use.owner.operation, use.operand_number) for use in result.uses]
    if users and all(op.name == "stablehlo.optimization_barrier" for op, _ in users):
        return
    with ir.InsertionPoint.after(gather), gather.location:
        barrier = hlo.optimization_barrier(result)
    for op, i in users:
        op.operands[i] = barrier
