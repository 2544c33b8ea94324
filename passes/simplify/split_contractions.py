"""pcp-split-contractions: long contractions over leading dims, in chunks."""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import attributes, before, operations, replace


@dataclass(frozen=True)
class SplitContractions(Pass):
    """Contract a long leading dim of both operands chunk by chunk, then add up.

    The gradient of a weight is `xᵀg` over all tokens. Walking down columns of both
    operands misses the cache at each step; a chunk of `chunk` rows fits it, and
    the chunks are independent.

    Assumes static shapes. Changes the order of the sum, which StableHLO leaves to
    the implementation; costs the memory of `K / chunk` results. Only products
    without batch dims, with a result of at least `least` elements and a contracted
    dim of at least four chunks, are split.

        %0 = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0]
            : (tensor<2048x1024xf32>, tensor<2048x256xf32>) -> tensor<1024x256xf32>
    becomes
        %a = stablehlo.reshape %x : (tensor<2048x1024xf32>) -> tensor<8x256x1024xf32>
        %b = stablehlo.reshape %g : (tensor<2048x256xf32>) -> tensor<8x256x256xf32>
        %c = stablehlo.dot_general %a, %b, batching_dims = [0] x [0],
                                           contracting_dims = [1] x [1]
            : (tensor<8x256x1024xf32>, tensor<8x256x256xf32>) -> tensor<8x1024x256xf32>
        %0 = stablehlo.reduce(%c init: %zero) applies stablehlo.add
            across dimensions = [0]
            : (tensor<8x1024x256xf32>, tensor<f32>) -> tensor<1024x256xf32>
    """

    name = "pcp-split-contractions"
    chunk: int = 256
    least: int = 16384

    def run(self, module: ir.Module) -> None:
        """Rewrite in place."""
        self.split(module.operation)

    def split(self, within: ir.Operation) -> None:
        """The same with one of a module's modules."""
        for op in operations(within):
            if op.name == "stablehlo.dot_general" and self._gains(op):
                with before(op):
                    replace(op, [self._split(op)])

    def _gains(self, op: ir.Operation) -> bool:
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        leading = (
            not numbers.lhs_batching_dimensions
            and list(numbers.lhs_contracting_dimensions) == [0]
            and list(numbers.rhs_contracting_dimensions) == [0]
        )
        floats = hlo.is_float(hlo.element_type(op.result))
        length = hlo.shape_of(op.operands[0])[0] if leading else 0
        return (
            floats
            and hlo.size(op.result) >= self.least
            and length >= 4 * self.chunk
            and length % self.chunk == 0
        )

    def _split(self, op: ir.Operation) -> ir.Value:
        chunked = []
        for operand in op.operands:
            length, *rest = hlo.shape_of(operand)
            shape = [length // self.chunk, self.chunk, *rest]
            chunked.append(hlo.reshape(operand, shape))
        kept = attributes(op)
        kept["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(
            [0], [0], [1], [1]
        )
        count = hlo.shape_of(chunked[0])[0]
        shape = [count, *hlo.shape_of(op.result)]
        type_ = hlo.tensor(shape, hlo.element_type(op.result))
        parts = hlo.op("dot_general", chunked, [type_], **kept).result
        return hlo.reduce_sum(parts, [0])
