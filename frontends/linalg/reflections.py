"""Householder reflections: QR, and products with its Q, on `[..., m, n]`.

The conventions are those of LAPACK's geqrf: `H = 1 - tau v vᴴ` with v = 1 at its
diagonal entry, `Q = H₀ H₁ ...`, and R has a real diagonal, negative where the entry
above was positive.
"""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from pcp.frontends.linalg.matrices import adjoint, column, eye, size, square

Array = jax.Array


def geqrf(a: Array) -> list[Array]:
    """(R above the vectors v, `[..., m, n]`; taus, `[..., min(m, n)]`)."""
    *batch, m, n = a.shape
    taus = jnp.zeros((*batch, min(m, n)), a.dtype)
    if 0 in a.shape:
        return [a, taus]
    return list(lax.fori_loop(0, min(m, n), _step, (a, taus)))


def _step(k: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
    a, taus = state
    m, n = a.shape[-2:]
    row, col = (jnp.arange(i, dtype=jnp.int32) for i in (m, n))
    v, beta, tau = _reflection(column(a, k), k, row)
    rest = a - _outer(jnp.conj(tau) * v, jnp.sum(jnp.conj(v)[..., None] * a, axis=-2))
    at = jnp.where(row > k, v, jnp.where(row == k, beta, column(a, k)))
    made = jnp.where(col > k, rest, jnp.where(col == k, at[..., None], a))
    here = jnp.arange(taus.shape[-1], dtype=jnp.int32) == k
    return made, jnp.where(here, tau, taus)


def _reflection(x: Array, k: Any, row: Array) -> tuple[Array, Array, Array]:
    """(v; the entry that the column comes down to; tau), the two `[..., 1]`."""
    alpha = lax.dynamic_index_in_dim(x, k, x.ndim - 1)
    below = jnp.where(row > k, x, 0)
    length = _norm(jnp.where(row >= k, x, 0))
    beta = jnp.where(alpha.real < 0, length, -length).astype(x.dtype)
    done = (_norm(below) == 0) & (alpha.imag == 0)  # it is what it should be
    tau = jnp.where(done, 0, (beta - alpha) / jnp.where(done, 1, beta))
    v = jnp.where(row == k, 1, below / jnp.where(done, 1, alpha - beta))
    return v, jnp.where(done, alpha, beta), tau


def _norm(x: Array) -> Array:
    """Euclidean, `[..., 1]`; by way of the largest entry, against overflow."""
    largest = jnp.max(size(x), axis=-1, keepdims=True)
    unit = jnp.where(largest > 0, largest, 1)
    return largest * jnp.sqrt(jnp.sum(square(x / unit), axis=-1, keepdims=True))


def _outer(x: Array, y: Array) -> Array:
    return x[..., :, None] * y[..., None, :]


def apply(a: Array, taus: Array, c: Array, *, transpose: bool = False) -> Array:
    """Q c, or Qᴴ c, of the reflections that `geqrf` gives; c is `[..., m, p]`."""
    row = jnp.arange(a.shape[-2], dtype=jnp.int32)
    steps = taus.shape[-1]

    def step(i: Any, c: Array) -> Array:
        k = i if transpose else steps - 1 - i
        tau = column(taus, k)[..., None]
        v = jnp.where(row > k, column(a, k), jnp.where(row == k, 1, 0))
        tau = jnp.conj(tau) if transpose else tau
        return c - _outer(tau * v, jnp.sum(jnp.conj(v)[..., None] * c, axis=-2))

    return c if 0 in c.shape else lax.fori_loop(0, steps, step, c)


def householder_product(a: Array, taus: Array) -> list[Array]:
    """The first columns of Q, as many as `a` has."""
    *batch, m, n = a.shape
    return [apply(a, taus, eye(batch, m, n, a))]


def ormqr(
    a: Array, taus: Array, c: Array, *, left: bool, transpose: bool
) -> list[Array]:
    """Q c, or c Q, or with Qᴴ."""
    if left:
        return [apply(a, taus, c, transpose=transpose)]
    return [adjoint(apply(a, taus, adjoint(c), transpose=not transpose))]


def qr(a: Array, *, full_matrices: bool) -> list[Array]:
    """(Q, `[..., m, k]`; R, `[..., k, n]`), k = m if full, else min(m, n)."""
    *batch, m, n = a.shape
    k = m if full_matrices else min(m, n)
    packed, taus = geqrf(a)
    q = apply(packed, taus, eye(batch, m, k, a))
    return [q, jnp.triu(packed[..., :k, :])]
