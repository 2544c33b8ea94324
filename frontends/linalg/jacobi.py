"""Singular values and eigenvalues by one-sided Jacobi rotations (Hestenes 1958).

Columns are rotated against each other until all are orthogonal: `A V = U S`. The two
halves of the columns are rotated pair by pair at once, and the columns then move on as
players of a round robin, so that after n - 1 steps each has met each (Brent and Luk,
1985). A Hermitian matrix is shifted to be positive definite, where V holds its
eigenvectors.

Neither the signs (phases) of vectors nor those of equal values are LAPACK's.
"""

from functools import partial
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from pcp.frontends.linalg.matrices import adjoint, eye, product, size, square
from pcp.frontends.linalg.reflections import apply, geqrf

Array = jax.Array

#: Sweeps over all pairs. Some ten are needed in f64, six to eight in f32.
SWEEPS = 30


def svd(
    a: Array,
    *,
    full_matrices: bool,
    compute_uv: bool,
    subset_by_index: tuple[int, int] | None = None,
    **hints: Any,
) -> list[Array]:
    """(s, `[..., k]`, falling; U, `[..., m, k]`; Vᴴ, `[..., k, n]`), k = min(m, n).

    With `full_matrices` U and V are square. NaN where an entry is not finite. The hint
    which algorithm to take is not heard.
    """
    *_, m, n = a.shape
    first, last = subset_by_index or (0, min(m, n))
    s, *uv = _tall(adjoint(a) if m < n else a, full_matrices, compute_uv)
    if uv and m < n:
        uv = [adjoint(x) for x in reversed(uv)]
    if uv and not full_matrices:
        uv = [uv[0][..., :, first:last], uv[1][..., first:last, :]]
    return [s[..., first:last], *uv]


def _tall(a: Array, full: bool, vectors: bool) -> list[Array]:
    """`svd` of m >= n."""
    *batch, m, n = a.shape
    if 0 in a.shape:
        s = jnp.zeros((*batch, n), a.real.dtype)
        u = eye(batch, m, m if full else n, a)
        return [s, u, eye(batch, n, n, a)] if vectors else [s]
    scaled, scale = _scaled(a)
    rotated, v = _orthogonal(scaled, vectors)
    s = jnp.sqrt(jnp.sum(square(rotated), axis=-2))
    order = jnp.argsort(-s, axis=-1)
    found = [jnp.take_along_axis(s, order, -1) * scale[..., 0]]
    if vectors:
        u = _normalized(_taken(rotated, order), m if full else n)
        found += [u, adjoint(_taken(v, order))]
    return _marred(found, a)


def _normalized(a: Array, columns: int) -> Array:
    """Orthogonal columns made of length one; those that are zero, and more, are added.

    R of a QR is diagonal here, but for what rounding leaves.
    """
    *batch, m, n = a.shape
    packed, taus = geqrf(a)
    q = apply(packed, taus, eye(batch, m, columns, a))
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1).real
    sign = jnp.where(diagonal < 0, -1, 1).astype(a.dtype)
    padding = [(0, 0)] * len(batch) + [(0, columns - n)]
    return q * jnp.pad(sign, padding, constant_values=1)[..., None, :]


def eigh(
    a: Array,
    *,
    lower: bool,
    subset_by_index: tuple[int, int] | None = None,
    **hints: Any,
) -> list[Array]:
    """(vectors, `[..., n, n]`; values, `[..., n]`, rising) of a Hermitian matrix.

    One triangle is read. NaN where an entry of it is not finite. Hints as in `svd`.
    """
    *batch, n, _ = a.shape
    first, last = subset_by_index or (0, n)
    if 0 in a.shape:
        return [a[..., first:last], jnp.zeros((*batch, last - first), a.real.dtype)]
    whole = _hermitian(a if lower else adjoint(a))
    scaled, scale = _scaled(whole)
    # All values of the shifted matrix are between a quarter and 9/4 of the norm.
    shift = 1.25 * jnp.sqrt(jnp.sum(square(scaled), axis=(-2, -1), keepdims=True))
    one = eye(batch, n, n, a)
    _, v = _orthogonal(scaled + shift.astype(a.dtype) * one, True)
    w = jnp.sum((jnp.conj(v) * product(scaled, v)).real, axis=-2)
    order = jnp.argsort(w, axis=-1)
    w = jnp.take_along_axis(w, order, -1) * scale[..., 0]
    v, w = _marred([_taken(v, order), w], whole)
    return [v[..., first:last], w[..., first:last]]


def _hermitian(a: Array) -> Array:
    """What the lower triangle says of the whole; the diagonal is real."""
    strict = jnp.tril(a, -1)
    diagonal = jnp.diagonal(a, axis1=-2, axis2=-1).real.astype(a.dtype)
    one = eye([], a.shape[-2], a.shape[-1], a)
    return jnp.where(one == 1, diagonal[..., None], strict + adjoint(strict))


def _scaled(a: Array) -> tuple[Array, Array]:
    """(`a` with a largest entry of about one; what divided it, `[..., 1, 1]`)."""
    largest = jnp.max(size(a), axis=(-2, -1), keepdims=True)
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    return a / scale, scale


def _taken(a: Array, order: Array) -> Array:
    """The columns in an order, `[..., n]`."""
    return jnp.take_along_axis(a, order[..., None, :], -1)


def _marred(values: list[Array], a: Array) -> list[Array]:
    """NaN in place of the values of a matrix with entries that are not finite."""
    good = jnp.all(jnp.isfinite(a), axis=(-2, -1))

    extended = [good.reshape(*good.shape, *[1] * (x.ndim - good.ndim)) for x in values]
    return [jnp.where(e, x, jnp.nan) for e, x in zip(extended, values, strict=True)]


# --- rotations ---

#: (sweeps that were made; the two halves of the columns; the worst cosine of the last)
State = tuple[Any, Array, Array, Array]


def _orthogonal(a: Array, vectors: bool) -> tuple[Array, Array]:
    """(A V, whose columns are orthogonal, `[..., m, n]`; V, or none of its rows)."""
    *batch, m, n = a.shape
    pairs = (n + 1) // 2
    work = jnp.concatenate([a, eye(batch, n, n, a)], -2) if vectors else a
    work = jnp.pad(work, [(0, 0)] * (a.ndim - 1) + [(0, 2 * pairs - n)])
    enough = 4 * m**0.5 * _eps(a)  # a cosine that a sum of m products rounds to zero
    # What is this small beside the whole is rounding: it has no direction.
    floor = jnp.sum(square(a), axis=(-2, -1))[..., None] * _eps(a) ** 2

    def wanted(state: State) -> Array:
        return (state[0] < SWEEPS) & (state[3] > enough)

    def sweep(state: State) -> State:
        count, left, right, _ = state
        start = (left, right, jnp.zeros((), a.real.dtype))
        met = lax.fori_loop(0, max(2 * pairs - 1, 1), partial(_step, m, floor), start)
        return count + 1, *met

    worst = jnp.asarray(jnp.inf, a.real.dtype)
    start = (0, work[..., :pairs], work[..., pairs:], worst)
    state = lax.while_loop(wanted, sweep, start)
    done = jnp.concatenate(state[1:3], -1)[..., :n]
    return done[..., :m, :], done[..., m:, :]


def _eps(a: Array) -> float:
    return float(jnp.finfo(a.dtype).eps)


def _step(m: int, floor: Array, _: Any, state: Any) -> Any:
    """All pairs rotated, and moved on."""
    left, right, worst = state
    left, right, cosine = _rotated(left, right, m, floor)
    return *_moved_on(left, right), jnp.maximum(worst, cosine)


def _rotated(x: Array, y: Array, m: int, floor: Array) -> tuple[Array, Array, Array]:
    """(x and y, whose first m rows are now orthogonal; the worst cosine before)."""
    alpha, beta = (jnp.sum(square(z[..., :m, :]), axis=-2) for z in (x, y))
    dot = jnp.sum(jnp.conj(x[..., :m, :]) * y[..., :m, :], axis=-2)
    length = jnp.abs(dot)
    some = length > 0
    unit = jnp.where(some, length, 1)
    c, s = (z[..., None, :] for z in _angle((beta - alpha) / (2 * unit), some))
    phase = jnp.conj(jnp.where(some, dot / unit, 1))[..., None, :]
    seen = jnp.minimum(alpha, beta) > floor
    cosine = jnp.where(seen, length / jnp.sqrt(jnp.where(seen, alpha * beta, 1)), 0)
    turned = y * phase
    return c * x - s * turned, s * x + c * turned, jnp.max(cosine)


def _angle(zeta: Array, some: Array) -> tuple[Array, Array]:
    """Cosine and sine of the smaller rotation (Rutishauser 1966); 1 and 0 of none.

    `zeta` is the cotangent of twice the angle.
    """
    tangent = 1 / (jnp.abs(zeta) + jnp.sqrt(1 + zeta * zeta))
    tangent = jnp.where(some, jnp.where(zeta < 0, -tangent, tangent), 0)
    cosine = 1 / jnp.sqrt(1 + tangent * tangent)
    return cosine, cosine * tangent


def _moved_on(left: Array, right: Array) -> tuple[Array, Array]:
    """The next pairs of the round robin: all but the first column go round."""
    if left.shape[-1] == 1:
        return left, right
    return (
        jnp.concatenate([left[..., :1], right[..., :1], left[..., 1:-1]], -1),
        jnp.concatenate([right[..., 1:], left[..., -1:]], -1),
    )
