"""A contraction over many terms as those of chunks, along dims of their own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core.rewriting import attributes
from pcp.passes.simplify.chunks import Chunk, cut, halves

Value = ir.Value
Pairs = tuple[tuple[int, int], ...]

OPERANDS = 4
"""Times that the results of all chunks fit into the operands, at least: for a result as
large as these a chunk of `chunk` terms would cost more memory than the program has."""

LONGER = 4
"""Times that a chunk may be longer where no number near the wanted one divides a dim:
a product of few terms is slow."""


@dataclass(frozen=True)
class Product:
    """A `dot_general`: pairs of dims, one of each operand."""

    op: ir.Operation
    left: Value
    right: Value
    batch: Pairs
    contracted: Pairs
    """Of the first operand the outer before the inner."""

    @classmethod
    def of(cls, op: ir.Operation) -> "Product":
        """Read the op."""
        n = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        left = n.lhs_batching_dimensions, n.lhs_contracting_dimensions
        right = n.rhs_batching_dimensions, n.rhs_contracting_dimensions
        pairs = [
            tuple(zip(*both, strict=True)) for both in zip(left, right, strict=True)
        ]
        first, second = op.operands
        return cls(op, first, second, pairs[0], tuple(sorted(pairs[1])))

    @property
    def terms(self) -> int:
        """Of each sum."""
        shape = hlo.shape_of(self.left)
        return prod(shape[d] for d, _ in self.contracted)

    def chunk(self, least: int, most: int) -> Chunk:
        """Of `least` terms, or of as many as keep all results small."""
        given = sum(map(hlo.size, (self.left, self.right))) // self.terms
        fitting = OPERANDS * hlo.size(self.op.result) // max(1, given)
        dims, shape = [d for d, _ in self.contracted], hlo.shape_of(self.left)
        wanted = min(max(least, fitting), most)
        chunk = Chunk.of(shape, dims, wanted)
        if chunk.terms * LONGER < wanted:  # 50,257 terms: 1,733 together, and not 29
            return Chunk.of(shape, dims, min(wanted * LONGER, most))
        return chunk

    def halves(self, chunk: Chunk) -> tuple["Product", "Product"]:
        """The product of whole chunks, and that of the rest."""
        dims = next(pair for pair in self.contracted if pair[0] == chunk.dim)
        left = halves(self.left, dims[0], chunk.even)
        right = halves(self.right, dims[1], chunk.even)
        whole = replace(self, left=left[0], right=right[0])
        return whole, replace(self, left=left[1], right=right[1])

    def value(self) -> Value:
        """The op with these operands, its result's dims behind those of the batch."""
        return self._product(self.left, self.right, self.batch, self.contracted)

    def parts(self, chunk: Chunk) -> tuple[Value, range]:
        """The products of chunks, and the dims that are left to be summed over."""
        at = next(i for i, pair in enumerate(self.contracted) if pair[0] == chunk.dim)
        dims = self.contracted[at]
        left = cut(self.left, dims[0], chunk.size)
        right = cut(self.right, dims[1], chunk.size)
        behind = _behind(dims, self.batch)
        outer, inner = self.contracted[:at], self.contracted[at + 1 :]
        batch = (*behind, *_behind(dims, outer), dims)
        contracted = ((dims[0] + 1, dims[1] + 1), *_behind(dims, inner))
        value = self._product(left, right, batch, contracted)
        return value, range(len(behind), len(batch))

    def _product(self, left: Value, right: Value, batch: Pairs, over: Pairs) -> Value:
        free = [
            _free(hlo.shape_of(x), [pair[i] for pair in (*batch, *over)])
            for i, x in enumerate((left, right))
        ]
        shape = [hlo.shape_of(left)[d] for d, _ in batch] + free[0] + free[1]
        numbers = stablehlo.DotDimensionNumbers.get(*_columns(batch), *_columns(over))
        kept = {**attributes(self.op), "dot_dimension_numbers": numbers}
        result = hlo.tensor(shape, hlo.element_type(self.op.result))
        return hlo.op("dot_general", [left, right], [result], **kept).result


def _behind(cut_: tuple[int, int], pairs: Pairs) -> Pairs:
    """The same dims where those of `cut_` have become two."""
    return tuple((a + (a > cut_[0]), b + (b > cut_[1])) for a, b in pairs)


def _columns(pairs: Pairs) -> tuple[list[int], list[int]]:
    return [a for a, _ in pairs], [b for _, b in pairs]


def _free(shape: Sequence[int], taken: Sequence[int]) -> list[int]:
    return [n for d, n in enumerate(shape) if d not in taken]
