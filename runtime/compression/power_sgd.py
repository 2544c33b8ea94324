"""PowerSGD: the mean of matrices, by factors of low rank.

One step of subspace iteration (Vogels, Karimireddy, Jaggi, "PowerSGD", 2019),
for M = input + residual of shape (n, m) and rank r:

    P = mean(M Q);  P^ = orthonormal(P);  Q = mean(M^T P^);  out = P^ Q^T
    residual' = M - out

The frames have r (n + m) elements in place of n m. Q is kept from step to step; a
member that joins takes it over with `state`.

The factors come from all_reduce, and everything computed from them uses
elementwise arithmetic in a fixed order, so that all members, whatever their
processors, hold the same bits.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError

F32 = NDArray[np.float32]


class Reducer(Protocol):
    """The part of a communicator that PowerSGD uses."""

    def all_reduce(self, array: F32, op: str, *, tag: str) -> F32:
        """In place, bit-identical on all members."""
        ...


class PowerSGD:
    """A member's factors and residuals, one of each per tag."""

    def __init__(self, rank: int = 4, seed: int = 0) -> None:
        if rank < 1:
            raise UsageError(f"PowerSGD of rank {rank} does not exist")
        self.rank = rank
        self._seed = seed
        self._factors: dict[str, F32] = {}
        self._residuals: dict[str, F32] = {}

    def wire_elements(self, rows: int, columns: int) -> int:
        """Elements a matrix of this shape puts into the two reductions."""
        return min(self.rank, rows, columns) * (rows + columns)

    def all_reduce(self, comm: Reducer, matrix: F32, *, tag: str) -> F32:
        """Make `matrix` (float32, two dimensions) about the members' mean.

        When a reduction raises, the matrix, the factor and the residual are as
        they were.
        """
        if matrix.ndim != 2 or matrix.dtype != np.float32:
            raise UsageError(
                f"PowerSGD takes float32 matrices, not {matrix.dtype} of shape "
                f"{matrix.shape}; reshape it, or use another compression"
            )
        residual = self._residuals.get(tag)
        target = matrix.copy() if residual is None else matrix + residual
        p = comm.all_reduce(target @ self._factor(tag, matrix), "mean", tag=f"{tag}/P")
        p = orthonormal(p)
        q = comm.all_reduce(np.ascontiguousarray(target.T @ p), "mean", tag=f"{tag}/Q")
        low = outer(p, q)
        self._factors[tag], self._residuals[tag] = q, target - low
        matrix[...] = low
        return matrix

    def state(self) -> dict[str, dict[str, F32]]:
        """Factors and residuals by tag; a newcomer takes the factors alone."""
        return {
            "factors": {tag: q.copy() for tag, q in self._factors.items()},
            "residuals": {tag: e.copy() for tag, e in self._residuals.items()},
        }

    def restore(self, state: Mapping[str, Mapping[str, F32]]) -> None:
        """Take over the factors and residuals that `state` gave."""
        self._factors = {t: q.copy() for t, q in state["factors"].items()}
        self._residuals = {t: e.copy() for t, e in state.get("residuals", {}).items()}

    def _factor(self, tag: str, matrix: F32) -> F32:
        rows, columns = matrix.shape
        held = self._factors.get(tag)
        if held is None:
            # Integers of a specified generator: no library's normal distribution.
            rank = min(self.rank, rows, columns)
            draw = np.random.Philox(key=self._seed).random_raw(columns * rank)
            unit = (draw >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - 1
            return unit.reshape(columns, rank)
        if held.shape[0] != columns:
            raise UsageError(
                f"tag {tag!r} had {held.shape[0]} columns, not {columns}; give every "
                f"matrix a tag of its own"
            )
        return held


def orthonormal(p: F32) -> F32:
    """The columns of `p`, made orthonormal by Gram-Schmidt, twice.

    A column that depends on the ones before becomes zero: it adds nothing.
    """
    columns: list[F32] = []
    for k in range(p.shape[1]):
        column = p[:, k].copy()
        size = np.sqrt(_dot(column, column))
        for _ in range(2):
            for before in columns:
                column -= _dot(before, column) * before
        norm = np.sqrt(_dot(column, column))
        with np.errstate(all="ignore"):
            dependent = norm <= np.float32(1e-6) * size
            columns.append(np.zeros_like(column) if dependent else column / norm)
    return np.stack(columns, axis=1)


def outer(p: F32, q: F32) -> F32:
    """`p @ q.T`, added up column by column."""
    total = np.zeros((p.shape[0], q.shape[0]), np.float32)
    for k in range(p.shape[1]):
        total += p[:, k, None] * q[None, :, k]
    return total


def _dot(a: F32, b: F32) -> np.float32:
    """An inner product by halving: the order depends on the length alone."""
    products = a * b
    while products.size > 1:
        half = products.size // 2
        tail = products[2 * half :]
        products = np.concatenate([products[:half] + products[half : 2 * half], tail])
    return products[0] if products.size else np.float32(0)
