"""Factorizations as JAX runs them, against numpy and LAPACK's conventions."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.jax_gradients import once
from helpers.sampled import sampled
from jax.lax import linalg

from pcp.frontends.linalg import elimination, jacobi, reflections
from pcp.frontends.linalg.primitives import factorize

KINDS = ("float32", "complex64")
SHAPES = ((1, 1), (2, 2), (5, 3), (3, 5), (8, 8), (32, 32))
EPS = 1.2e-7

# Jitted: outside of `jit`, jax compiles a program for each op.
lu = once(elimination.lu)
qr = once(reflections.qr, static_argnames="full_matrices")
svd = once(partial(jacobi.svd, full_matrices=True, compute_uv=True))
eigh = once(jacobi.eigh, static_argnames="lower")


def matrices(kind: str, m: int, n: int) -> np.ndarray:
    """A regular one, one of rank n - 1, and one whose columns fall to 1e-6."""
    rng = np.random.default_rng([m, n])
    a = rng.normal(size=(3, m, n))
    if kind == "complex64":
        a = a + 1j * rng.normal(size=a.shape)
    a[1, :, -1] = a[1, :, 0]
    a[2] *= np.logspace(0, -6, n)
    return a.astype(kind)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def agree(ours, theirs, factor: float) -> None:
    """To so many roundings of the largest entry."""
    bound = factor * EPS * max(1, float(np.abs(theirs).max(initial=0)))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


def orthonormal(q, factor: float) -> None:
    gram = adjoint(q) @ q
    agree(gram, np.broadcast_to(np.eye(q.shape[-1]), gram.shape), factor)


#: Slow: JAX compiles each size anew; one that is high shows most.
BETWEEN = {(1, 1), (2, 2), (3, 5), (8, 8), (32, 32)}


def sizes(every):
    """What is between the others is slow."""
    slow = pytest.mark.slow
    return [
        pytest.param(s, marks=slow if s in BETWEEN else (), id=str(s)) for s in every
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", sizes(SHAPES))
def test_every_factorization(shape: tuple[int, int], kind: str) -> None:
    a = jnp.asarray(matrices(kind, *shape))
    k, steps = min(shape), 8 * max(shape)
    for ours, theirs in zip(lu(a[:1]), linalg.lu(a[:1]), strict=True):
        agree(ours, theirs, steps)
    q, r = qr(a, full_matrices=True)
    agree(q @ r, a, steps)
    orthonormal(np.asarray(q), steps)
    agree(r[0], np.linalg.qr(a[0], mode="complete")[1], steps)
    s, u, v = (np.asarray(x) for x in svd(a))
    agree(s, np.linalg.svd(a, compute_uv=False), steps)
    agree((u[..., :k] * s[..., None, :]) @ v[..., :k, :], a, steps)
    orthonormal(u, steps)
    orthonormal(v, steps)


@pytest.mark.parametrize("lower", [True, False])
@sampled("kind", KINDS, 1)
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.slow), 5, 32])
def test_eigh(n: int, kind: str, lower: bool) -> None:
    """What is not read is NaN. Values of both signs, and equal ones."""
    a = matrices(kind, n, n)
    whole = a + adjoint(a)
    whole[2] = np.eye(n) * np.where(np.arange(n) % 2, -1, 1)
    unread = np.triu(np.ones((n, n), bool), 1)
    given = np.where(unread if lower else unread.T, np.nan, whole).astype(kind)
    v, w = (np.asarray(x) for x in eigh(jnp.asarray(given), lower=lower))
    agree(w, np.linalg.eigvalsh(whole), 8 * n)
    agree(whole @ v, v * w[..., None, :], 16 * n)
    orthonormal(v, 8 * n)


@sampled("scale", [0.0, 1e-30, 1e30], 2)
def test_no_scale_overflows(scale: float) -> None:
    a = matrices("float32", 4, 4)[0] * np.float32(scale)
    s, u, _ = svd(a)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), rtol=1e-5)
    np.testing.assert_allclose(u @ u.T, np.eye(4), atol=1e-5)
    _, w = eigh(a + a.T, lower=True)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(a + a.T), rtol=1e-4)
    q, r = qr(a, full_matrices=False)
    np.testing.assert_allclose(q @ r, a, rtol=1e-4, atol=1e-6 * scale)


@sampled("bad", [np.nan, np.inf], 1)
def test_what_is_not_finite_spoils_its_own_matrix_only(bad: float) -> None:
    a = matrices("float32", 3, 3)
    a = a + adjoint(a)
    a[1, 2, 0] = bad
    for ours in (*svd(a), *eigh(a, lower=True)):
        assert np.isnan(ours[1]).all()
        assert np.isfinite(ours[0]).all()
        assert np.isfinite(ours[2]).all()


def test_a_singular_matrix_has_a_determinant_of_zero() -> None:
    factors, _, _ = lu(jnp.ones((3, 3)))
    assert np.isfinite(factors).all()
    assert factors[1, 1] == 0


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (2, 3, 0)], ids=str)
def test_nothing_has_the_shapes_that_jax_says(shape: tuple[int, ...]) -> None:
    a = jnp.zeros(shape)
    pairs = [(lu(a), linalg.lu(a)), (svd(a), linalg.svd(a))]
    if shape[-2] == shape[-1]:
        ours = eigh(a, lower=True)
        pairs.append((ours, jax.eval_shape(linalg.eigh, a)))
    for ours, theirs in pairs:
        assert sorted(x.shape for x in ours) == sorted(y.shape for y in theirs)


def test_narrow_floats_are_computed_in_f32() -> None:
    """JAX on a CPU takes none of them."""
    a = jnp.asarray(matrices("float32", 8, 8)[0]).astype(jnp.bfloat16)
    options: Any = {"full_matrices": False, "compute_uv": True}

    @once
    def both(a):
        wide = jacobi.svd(a.astype(jnp.float32), **options)
        return factorize("svd", a, **options), wide, factorize("lu", a)

    ours, theirs, in_lu = both(a)
    for x, y in zip(ours, theirs, strict=True):
        assert x.dtype == jnp.bfloat16
        np.testing.assert_array_equal(x, y.astype(jnp.bfloat16))
    assert [x.dtype for x in in_lu] == [jnp.bfloat16, np.int32, np.int32]
