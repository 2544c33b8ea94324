"""Tensors cut into tiles, and back: what a compressor looks at together.

A matrix becomes squares of `side`, anything else pieces of `piece` in row-major
order; a side that does not divide a dimension gives way to the dimension's largest
divisor below it, so that nothing is padded. Tensors of a higher rank count as
matrices of their first dimension.

The discrete cosine transform of a tile is DCT-II, orthonormal: its inverse is its
transpose.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


def divisor(size: int, most: int) -> int:
    """The largest divisor of `size` that is at most `most`."""
    return max(n for n in range(1, min(size, most) + 1) if size % n == 0)


@dataclass(frozen=True)
class Tiles:
    """How a shape is cut: `rows` tiles of `height` x `width` elements."""

    shape: tuple[int, ...]
    height: int
    width: int

    @property
    def columns(self) -> int:
        """Elements of a tile."""
        return self.height * self.width

    @property
    def rows(self) -> int:
        """Tiles."""
        return prod(self.shape) // self.columns

    def split(self, x: Value) -> Value:
        """`[rows, columns]`, each row a tile in row-major order."""
        if self.height == 1:
            return hlo.reshape(x, (self.rows, self.columns))
        blocks = hlo.reshape(x, self._blocks())
        return hlo.reshape(
            hlo.transpose(blocks, (0, 2, 1, 3)), (self.rows, self.columns)
        )

    def join(self, tiles: Value) -> Value:
        """The tensor that `split` cut."""
        if self.height == 1:
            return hlo.reshape(tiles, self.shape)
        down, high, along, wide = self._blocks()
        blocks = hlo.reshape(tiles, (down, along, high, wide))
        return hlo.reshape(hlo.transpose(blocks, (0, 2, 1, 3)), self.shape)

    def _blocks(self) -> tuple[int, int, int, int]:
        rows, columns = self.shape[0], prod(self.shape[1:])
        return rows // self.height, self.height, columns // self.width, self.width

    def cosines(self, tiles: Value, *, back: bool = False) -> Value:
        """Each tile's discrete cosine transform, or with `back` its inverse."""
        x = hlo.reshape(tiles, (self.rows, self.height, self.width))
        for axis, size in ((1, self.height), (2, self.width)):
            if size > 1:
                basis = _constant(dct(size).T if back else dct(size))
                turned = hlo.dot_general(x, basis, contract=((axis,), (1,)))
                x = hlo.transpose(turned, (0, 2, 1)) if axis == 1 else turned
        return hlo.reshape(x, (self.rows, self.columns))


def squares(shape: tuple[int, ...], side: int, piece: int) -> Tiles:
    """Squares of `side` where there are two dimensions, else pieces of `piece`."""
    if len(shape) < 2:
        return pieces(shape, piece)
    height, width = divisor(shape[0], side), divisor(prod(shape[1:]), side)
    return Tiles(shape, height, width)


def pieces(shape: tuple[int, ...], most: int) -> Tiles:
    """Pieces of at most so many elements, one behind the other."""
    return Tiles(shape, 1, divisor(prod(shape), most))


def dct(size: int) -> np.ndarray:
    """The orthonormal DCT-II of `size` numbers as a matrix, float32."""
    n = np.arange(size)
    basis = np.cos(np.pi * (2 * n + 1) * n[:, None] / (2 * size))
    basis[0] /= np.sqrt(2)
    return (basis * np.sqrt(2 / size)).astype(np.float32)


def _constant(array: np.ndarray) -> Value:
    value = ir.DenseElementsAttr.get(np.ascontiguousarray(array))
    return hlo.op("constant", [], [value.type], value=value).result
