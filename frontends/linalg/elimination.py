"""LU with partial pivoting, on `[..., m, n]`.

One column a step, as LAPACK's getf2, and every entry is written at once by its place
beside the pivot. So a step is a search, two sums that pick a row each, and one
elementwise op, for any batch.
"""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from pcp.frontends.linalg.matrices import column, size

Array = jax.Array


def lu(a: Array) -> list[Array]:
    """(L below U, `[..., m, n]`; pivots, `[..., min(m, n)]`; rows, `[..., m]`).

    The factors are those of `a[rows]`. A zero pivot leaves its column as it is: U is
    singular, and nothing else is said of it (LAPACK's info).
    """
    *batch, m, n = a.shape
    steps = min(m, n)
    pivots = jnp.zeros((*batch, steps), jnp.int32)
    rows = jnp.broadcast_to(jnp.arange(m, dtype=jnp.int32), (*batch, m))
    if 0 in a.shape:
        return [a, pivots, rows]
    return list(lax.fori_loop(0, steps, _step, (a, pivots, rows)))


def _step(k: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    a, pivots, rows = state
    m, n = a.shape[-2:]
    row = jnp.arange(m, dtype=jnp.int32)
    found = _largest(column(a, k), row >= k)
    here, there = row == k, row == found[..., None]
    order = _exchanged(rows, here, there, axis=-1)
    swapped = _exchanged(a, here[:, None], there[..., None], axis=-2)
    at = jnp.arange(pivots.shape[-1], dtype=jnp.int32) == k
    return (
        _eliminated(swapped, k, row[:, None], jnp.arange(n, dtype=jnp.int32)),
        jnp.where(at, found[..., None], pivots),
        order,
    )


def _largest(x: Array, allowed: Array) -> Array:
    """The first of the largest entries that are allowed, `[...]`."""
    return lax.argmax(jnp.where(allowed, size(x), -1), x.ndim - 1, jnp.int32)


def _exchanged(x: Array, here: Array, there: Array, axis: int) -> Array:
    """`x` with the one place of `here` and the one of `there` exchanged."""
    first = jnp.sum(jnp.where(here, x, 0), axis, x.dtype, keepdims=True)
    second = jnp.sum(jnp.where(there, x, 0), axis, x.dtype, keepdims=True)
    return jnp.where(here, second, jnp.where(there, first, x))


def _eliminated(a: Array, k: Any, row: Array, col: Array) -> Array:
    """The column of the pivot divided by it, and its row taken off those below."""
    top = lax.dynamic_index_in_dim(a, k, a.ndim - 2)
    left = lax.dynamic_index_in_dim(a, k, a.ndim - 1)
    pivot = lax.dynamic_index_in_dim(top, k, a.ndim - 1)
    factor = left / jnp.where(pivot == 0, 1, pivot)
    below = jnp.where(col == k, factor, jnp.where(col > k, a - factor * top, a))
    return jnp.where(row > k, below, a)
