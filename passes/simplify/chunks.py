"""Dimensions that are summed over, cut into chunks of terms."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

FEW = 16
"""Terms: of shorter chunks there would be too many."""


@dataclass(frozen=True)
class Chunk:
    """All of the dims `inside`, and of `dim`, the one outside of them, `size`."""

    inside: tuple[int, ...]
    dim: int
    size: int
    terms: int
    """Of a chunk."""
    most: int
    """How many there might be."""

    @classmethod
    def of(cls, shape: Sequence[int], dims: Sequence[int], most: int) -> "Chunk":
        """The largest of at most `most` terms; all `dims` together have more."""
        inside, outer = list[int](), len(dims) - 1
        while prod(shape[d] for d in dims[outer:]) <= most:
            inside, outer = list(dims[outer:]), outer - 1
        dim, within = dims[outer], prod(shape[d] for d in inside)
        fitting = range(1, most // within + 1)
        size = max(n for n in fitting if shape[dim] % n == 0)
        return cls(tuple(inside), dim, size, size * within, most)

    @property
    def is_short(self) -> bool:
        """Whether so few divide the dim that chunks would gain little."""
        return self.terms < max(2, min(FEW, self.most // 2))

    @property
    def even(self) -> int:
        """How much of the dim would fit, whether it divides it or not."""
        return self.most // (self.terms // self.size)


def cut(x: ir.Value, dim: int, size: int) -> ir.Value:
    """The dim as two: which chunk, and `size` elements of it."""
    shape = list(hlo.shape_of(x))
    shape[dim : dim + 1] = [shape[dim] // size, size]
    return hlo.reshape(x, shape)


def halves(x: ir.Value, dim: int, size: int) -> tuple[ir.Value, ir.Value]:
    """All of the dim that is whole chunks, and the rest."""
    shape = hlo.shape_of(x)
    start, limit = [0] * len(shape), list(shape)
    start[dim] = limit[dim] = shape[dim] // size * size
    return hlo.slice_(x, [0] * len(shape), limit), hlo.slice_(x, start, shape)
