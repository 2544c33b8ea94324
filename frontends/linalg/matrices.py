"""What the factorizations share, on batches of matrices `[..., m, n]`."""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

Array = jax.Array


def column(a: Array, k: Any) -> Array:
    """Column k, `[..., m]`."""
    return lax.dynamic_index_in_dim(a, k, a.ndim - 1, keepdims=False)


def adjoint(a: Array) -> Array:
    """The conjugate transpose."""
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def product(a: Array, b: Array) -> Array:
    """The product of matrices in full precision."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def size(x: Array) -> Array:
    """|re| + |im|, by which LAPACK compares complex numbers; no overflow in it."""
    if not jnp.iscomplexobj(x):
        return jnp.abs(x)
    return jnp.abs(x.real) + jnp.abs(x.imag)


def square(x: Array) -> Array:
    """|x|², real."""
    return x * x if not jnp.iscomplexobj(x) else x.real * x.real + x.imag * x.imag


def eye(batch: list[int], m: int, n: int, like: Array) -> Array:
    """Ones on the diagonal, `[*batch, m, n]`."""
    return jnp.broadcast_to(jnp.eye(m, n, dtype=like.dtype), (*batch, m, n))
