"""`pcp-unfold-transforms`: Fourier transforms as products with their matrix.

IREE's own kernel, for powers of two, moves complex numbers as 64-bit words, which its
SPIR-V code generator does not have.
"""

from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, operations
from pcp.passes.legalize.legalize_fourier import as_product


@dataclass(frozen=True)
class UnfoldTransforms(Pass):
    """Write each `fft` as a product with the matrix of cosines and sines.

    Assumes what pcp-legalize leaves: transforms of one dimension. Leaves none; a length
    above 4096 is an error. Before and after:

        %0 = stablehlo.fft %x, type = FFT, length = [8] : ...

        ... 8 by 8 cosines and sines, looked up on the circle ...
        %1 = stablehlo.dot_general %re, %cosines, ...
        ... three more ...
        %0 = stablehlo.complex %2, %3 : tensor<8xcomplex<f32>>
    """

    name = "pcp-unfold-transforms"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place, or raise `PassError` at one that is too long."""
        for op in operations(module):
            if op.name == "stablehlo.fft":
                with before(op):
                    op.result.replace_all_uses_with(as_product(op))
                op.erase()
