"""pcp-split-reductions: long sums of floats, in chunks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Convolution, Window, reduce_window
from pcp.passes.core.base import Pass
from pcp.passes.core.constants import splat
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.rewriting import before, ints, operations, replace
from pcp.passes.simplify import long_convolutions, long_windows
from pcp.passes.simplify.chunks import Chunk, cut, halves
from pcp.passes.simplify.long_products import Product

Rule = Callable[[ir.Operation], ir.Value | None]

LONG = 256
"""Terms of a convolution: of more, products of few places are many times as fast."""


@dataclass(frozen=True)
class SplitReductions(Pass):
    """Sum up f32 in chunks of at most `chunk` terms, then their sums, and so on.

    On a CPU IREE adds one term after the other, and the rounding of each is as large as
    the sum is by then: that of 2^24 squares was 2.8 % too small. Of chunks the error
    grows with the logarithm of the number of terms, as in NumPy, PyTorch and XLA.

    Sums are those of `reduce`, of products, running sums, and those of windows that
    move by several elements at once. Assumes static shapes. Changes the order of a sum,
    which StableHLO leaves to the implementation; costs the memory of one f32 a chunk,
    and for a product at most a quarter of its operands'. Sums of at most `longest`
    terms stay, as do windows' sums that do not begin with 0, and sums of f64 and of
    integers.

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
        self._rewrite(module, {"stablehlo.convolution": self._places})
        rules = {
            "stablehlo.dot_general": self._contraction,
            "stablehlo.reduce": self._reduction,
            "stablehlo.reduce_window": self._window,
        }
        self._rewrite(module, rules)

    def _rewrite(self, module: ir.Module, rules: Mapping[str, Rule]) -> None:
        for op in operations(module):
            if (rule := rules.get(op.name)) and _makes_floats(op):
                with before(op):
                    if (value := rule(op)) is not None:
                        replace(op, [value])

    def _reduction(self, op: ir.Operation) -> ir.Value | None:
        dims = sorted(ints(op, "dimensions"))
        if not _sums(op) or _terms(op.operands[0], dims) <= self.longest:
            return None
        total, first = self._sum(op.operands[0], dims), op.operands[1]
        if splat(first) == 0:
            return total
        return hlo.add(hlo.splat(first, hlo.shape_of(total)), total)

    def _sum(self, x: ir.Value, dims: Sequence[int]) -> ir.Value:
        while _terms(x, dims) > max(self.longest, 2):
            chunk = Chunk.of(hlo.shape_of(x), dims, self._most)
            if chunk.is_short:
                whole, rest = halves(x, chunk.dim, chunk.even)
                return hlo.add(self._sum(whole, dims), self._sum(rest, dims))
            within = [chunk.dim + 1, *(d + 1 for d in chunk.inside)]
            x = hlo.reduce_sum(cut(x, chunk.dim, chunk.size), within)
            dims = [d for d in dims if d <= chunk.dim]
        return hlo.reduce_sum(x, dims)

    def _contraction(self, op: ir.Operation) -> ir.Value | None:
        product = Product.of(op)
        long = product.terms > max(self.longest, 2) and hlo.size(op.result)
        return self._contracted(product) if long else None

    def _contracted(self, product: Product) -> ir.Value:
        if product.terms <= max(self.longest, 2):
            return product.value()
        chunk = product.chunk(self._most, max(2, self.longest))
        if chunk.is_short:
            return hlo.add(*map(self._contracted, product.halves(chunk)))
        return self._sum(*product.parts(chunk))

    def _places(self, op: ir.Operation) -> ir.Value | None:
        how = Convolution.of(op)
        many = long_convolutions.terms(how, op.operands[1])
        alone = long_convolutions.is_of_single_terms(how, op.result)
        long = many > (self.longest if alone else min(LONG, self.longest))
        few = long_convolutions.is_of_few_places(how, op.operands[1], op.result)
        return long_convolutions.as_products(op, how) if long and few else None

    def _window(self, op: ir.Operation) -> ir.Value | None:
        window, x = Window.of(op), op.operands[0]
        if not _sums(op) or prod(window.sizes) <= self.longest:
            return None
        if splat(op.operands[1]) != 0 or hlo.is_complex(hlo.element_type(x)):
            return None
        if (along := long_windows.running(window, hlo.shape_of(x))) is not None:
            return long_windows.running_sum(x, *along, self._most)
        parts = long_windows.in_steps(window, hlo.shape_of(x), self._most)
        if parts is None:
            return None
        for each in parts:
            x = reduce_window([x], [op.operands[1]], each, hlo.add)[0]
        return x


def _terms(x: ir.Value, dims: Sequence[int]) -> int:
    return prod(hlo.shape_of(x)[d] for d in dims)


def _makes_floats(op: ir.Operation) -> bool:
    element = hlo.element_type(op.results[0])
    part = element.element_type if isinstance(element, ir.ComplexType) else element
    return isinstance(part, ir.F32Type)


def _sums(op: ir.Operation) -> bool:
    """Whether it adds up one operand."""
    return len(op.operands) == 2 and body_kind(op.regions[0].blocks[0]) == "add"
