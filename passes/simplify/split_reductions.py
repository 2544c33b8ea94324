"""pcp-split-reductions: long sums of floats, in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.constants import splat
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.rewriting import before, ints, operations, replace

FEW = 16
"""Terms: of shorter chunks there would be too many."""


@dataclass(frozen=True)
class SplitReductions(Pass):
    """Sum up f32 in chunks of at most `chunk` terms, then their sums, and so on.

    On a CPU IREE adds one term after the other, and the rounding of each is as large as
    the sum is by then: that of 2^24 squares was 2.8 % too small. Of chunks the error
    grows with the logarithm of the number of terms, as in NumPy, PyTorch and XLA.

    Assumes static shapes. Changes the order of a sum, which StableHLO leaves to the
    implementation; costs the memory of one f32 a chunk. Sums of at most `longest` terms
    stay, as do sums that do not begin with 0, and those of f64 and of integers.

        %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add
            across dimensions = [0, 1]
            : (tensor<4096x128xf32>, tensor<f32>) -> tensor<f32>
    becomes
        %a = stablehlo.reshape %x : (tensor<4096x128xf32>) -> tensor<1024x4x128xf32>
        %b = stablehlo.reduce(%a init: %zero) applies stablehlo.add
            across dimensions = [1, 2]
            : (tensor<1024x4x128xf32>, tensor<f32>) -> tensor<1024xf32>
        %0 = stablehlo.reduce(%b init: %zero) applies stablehlo.add
            across dimensions = [0] : (tensor<1024xf32>, tensor<f32>) -> tensor<f32>
    """

    name = "pcp-split-reductions"
    chunk: int = 512
    longest: int = 16384

    @property
    def _most(self) -> int:
        """Terms of a chunk."""
        return max(2, min(self.chunk, self.longest))

    def run(self, module: ir.Module) -> None:
        """Rewrite in place."""
        for op in operations(module):
            if op.name == "stablehlo.reduce" and _sums_floats(op):
                x, dims = op.operands[0], ints(op, "dimensions")
                if _terms(x, dims) > self.longest:
                    with before(op):
                        replace(op, [self._sum(x, sorted(dims))])

    def _sum(self, x: ir.Value, dims: Sequence[int]) -> ir.Value:
        while _terms(x, dims) > max(self.longest, 2):
            inside, outer, size = self._chunk(x, dims)
            if size * _terms(x, inside) < max(2, min(FEW, self._most // 2)):
                return self._whole_and_rest(x, dims, outer, inside)
            shape = list(hlo.shape_of(x))
            shape[outer : outer + 1] = [shape[outer] // size, size]
            within = [outer + 1, *(d + 1 for d in inside)]
            x = hlo.reduce_sum(hlo.reshape(x, shape), within)
            dims = [d for d in dims if d <= outer]
        return hlo.reduce_sum(x, dims)

    def _chunk(self, x: ir.Value, dims: Sequence[int]) -> tuple[list[int], int, int]:
        """The dims inside a chunk, the one outside of them, and how much of that."""
        shape, inside, outer = hlo.shape_of(x), list[int](), len(dims) - 1
        while _terms(x, dims[outer:]) <= self._most:
            inside, outer = list(dims[outer:]), outer - 1
        cut = dims[outer]
        most = self._most // _terms(x, inside)
        return inside, cut, max(n for n in range(1, most + 1) if shape[cut] % n == 0)

    def _whole_and_rest(
        self, x: ir.Value, dims: Sequence[int], outer: int, inside: Sequence[int]
    ) -> ir.Value:
        """Where no number divides a dim: all of it that is whole chunks, and more."""
        start, shape = [0] * len(hlo.shape_of(x)), list(hlo.shape_of(x))
        step, limit = self._most // _terms(x, inside), list(shape)
        start[outer] = limit[outer] = shape[outer] // step * step
        whole = hlo.slice_(x, [0] * len(shape), limit)
        rest = hlo.slice_(x, start, shape)
        return hlo.add(self._sum(whole, dims), self._sum(rest, dims))


def _terms(x: ir.Value, dims: Sequence[int]) -> int:
    return prod(hlo.shape_of(x)[d] for d in dims)


def _sums_floats(op: ir.Operation) -> bool:
    x, *more = op.operands
    return (
        len(more) == 1
        and body_kind(op.regions[0].blocks[0]) == "add"
        and splat(more[0]) == 0
        and isinstance(hlo.element_type(x), ir.F32Type)
    )
