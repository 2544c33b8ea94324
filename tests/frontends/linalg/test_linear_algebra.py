"""Linear algebra of JAX: values and derivatives as JAX has them, on IREE.

Where a factorization is free in signs or phases, what is compared does not depend on
them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.jax_gradients import (
    Case,
    check_jvp,
    check_vjp,
    derivative_case,
    transformed,
)
from helpers.oracles.legalized import Legalized
from helpers.sampled import sampled
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree
from jax.scipy import linalg

from pcp.errors import IRError, MissingRule
from pcp.frontends.jax import from_jax
from pcp.frontends.jax_rules import JaxRules

TOLERANCE = 1e-4


def compiled(iree: Iree) -> Legalized:
    """Programs on the target `cpu`, as a compile legalises them."""
    return Legalized(iree.on("cpu"))


def matrix(n: int, batch: tuple[int, ...] = (), kind: type = np.float32) -> np.ndarray:
    """Singular values, and eigenvalues of the Hermitian part, about one apart."""
    rng = np.random.default_rng([n, *batch])
    a = rng.normal(size=(*batch, n, n)) / (4 * n**0.5) + np.diag(1.0 + np.arange(n))
    if np.issubdtype(kind, np.complexfloating):
        a = a + 1j * rng.normal(size=a.shape) / (4 * n**0.5)
    return a.astype(kind)


def adjoint(a):
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def weights(a):
    """Numbers for the columns of a matrix."""
    return jnp.cos(jnp.arange(a.shape[-1], dtype=np.float32)).astype(a.dtype)


def near_one(a):
    """Of about the same condition at every size."""
    return a / (1.0 + jnp.arange(a.shape[-1]))


def from_svd(a):
    u, s, v = jnp.linalg.svd(a, full_matrices=False)
    return s, (u * weights(u)) @ v


def from_eigh(a):
    w, v = jnp.linalg.eigh(a + adjoint(a))
    return w, (v * weights(v)) @ adjoint(v)


def from_lu(a):
    """`jax.scipy.linalg.lu` takes no batches."""
    lu, pivots = linalg.lu_factor(a[..., ::-1, :])
    return linalg.lu_solve((lu, pivots), a), lu


def solutions(a):
    near = near_one(a)
    return (
        jnp.linalg.solve(near, a),
        jnp.linalg.inv(near),
        jnp.linalg.slogdet(near),
        jnp.linalg.det(near),
        from_lu(a),
    )


def triangles(a):
    factor = jnp.linalg.cholesky(near_one(a) @ adjoint(near_one(a)))
    solved = linalg.solve_triangular(factor, a, lower=True, trans="C")
    return factor, solved, jnp.linalg.qr(a)


def spectra(a):
    return from_svd(a), from_eigh(a)


def functions(a):
    return linalg.expm(near_one(a)), jnp.linalg.pinv(a)


def measures(a):
    """Of rank n - 1 at most by one column more."""
    wide = jnp.concatenate([a, a[..., :1]], -1)
    return (
        jnp.linalg.norm(a, 2, axis=(-2, -1)),
        jnp.linalg.norm(a, "nuc", axis=(-2, -1)),
        jnp.linalg.cond(a),
        jnp.linalg.matrix_rank(wide),
    )


def rectangles(a):
    """Of a tall matrix and a wide one."""
    wide = jnp.swapaxes(a, -1, -2)
    complete = jnp.linalg.qr(a, mode="complete")
    return jnp.linalg.qr(wide), complete, from_svd(wide), linalg.lu(a)


GROUPS = (solutions, triangles, spectra, functions, measures)


def case(fn: Callable[..., object], a: np.ndarray) -> Case:
    text = str(from_jax(fn, a))
    return Case(fn.__name__, fn, (a,), text=text, tolerance=TOLERANCE)


#: Made of the factorizations of the groups before them: slow.
MADE_OF_OTHERS = (functions, measures)


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(fn, marks=pytest.mark.slow if fn in MADE_OF_OTHERS else ())
        for fn in GROUPS
    ],
)
def test_reverse(fn: Callable[..., object], interpreter: Interpreter) -> None:
    """IREE compiles each for five seconds: the slow tests below, and the first here."""
    check_vjp(case(fn, matrix(4, (2,))), Legalized(interpreter))


@pytest.mark.slow  # ten seconds of IREE; square ones, and these forward, stay
def test_reverse_of_rectangles(iree: Iree) -> None:
    check_vjp(case(rectangles, matrix(5)[:, :3]), compiled(iree))


WIDE = ("float64", "complex128")


@pytest.mark.slow  # test_reverse is for real ones
def test_reverse_of_complex_numbers(iree: Iree) -> None:
    """Of them an SVD compiles for ten seconds: below."""

    def both(a):
        return jnp.linalg.qr(a), jnp.linalg.solve(near_one(a), a)

    check_vjp(case(both, matrix(3, (2,), np.complex64)), compiled(iree))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["complex64", *WIDE])
def test_reverse_of_every_element_type(kind: str, iree: Iree) -> None:
    def all_(a):
        return jnp.linalg.qr(a), from_svd(a), jnp.linalg.solve(near_one(a), a)

    with jax.enable_x64(kind in WIDE):
        check_vjp(case(all_, matrix(3, (2,), np.dtype(kind).type)), compiled(iree))


def test_forward(iree: Iree) -> None:
    def all_(a):
        return jnp.linalg.qr(a), from_eigh(a)

    check_jvp(case(all_, matrix(3)), compiled(iree))


def test_order_two(interpreter: Interpreter) -> None:
    def all_(a):
        return from_eigh(a), jnp.linalg.inv(a)

    check_vjp(derivative_case(case(all_, matrix(3))), Legalized(interpreter))


SIZES = (1, 2, 3, 5, 6, 7, 8, 32)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("fn", GROUPS)
def test_reverse_of_every_size(
    fn: Callable[..., object], n: int, batch: tuple[int, ...], iree: Iree
) -> None:
    check_vjp(case(fn, matrix(n, batch)), compiled(iree))


# --- what machine traces, and what is refused ---


def everything(a):
    inverse, sign = jnp.linalg.inv(a), jnp.linalg.slogdet(a)
    return inverse, sign, triangles(a), spectra(a)


@sampled("platform", ["cpu", "cuda", "tpu"], 1)
def test_no_platform_has_its_library_called(platform: str) -> None:
    """JAX's own rules call LAPACK, cuSOLVER, or XLA's expanders on a TPU."""
    traced = jax.jit(everything).trace(matrix(3))
    platforms: Any = {"lowering_platforms": (platform,)}
    parameters = JaxRules("everything").parameters()
    ours = traced.lower(**platforms, _private_parameters=parameters).as_text()
    assert "custom_call" not in ours.replace("custom_call @pcp.stop_gradient", "")
    assert "custom_call" in traced.lower(**platforms).as_text()


REFUSED = {
    "eigvals": (jnp.linalg.eigvals, "jnp.linalg.eigh"),
    "roots": (lambda a: jnp.roots(a[0], strip_zeros=False), "jnp.linalg.eigh"),
    "schur": (linalg.schur, "jnp.linalg.eigh"),
    "sqrtm": (linalg.sqrtm, "jnp.linalg.eigh"),
    "hessenberg": (linalg.hessenberg, "jnp.linalg.qr"),
    "qr": (lambda a: linalg.qr(a, pivoting=True), "jnp.linalg.qr"),
    "tridiagonal": (lambda a: jax.lax.linalg.tridiagonal(a), "jnp.linalg.eigh"),
    "tridiagonal_solve": (
        lambda a: jax.lax.linalg.tridiagonal_solve(a[0], a[1], a[2], a),
        "jnp.linalg.solve",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_function_and_the_way_out(name: str) -> None:
    fn, instead = REFUSED[name]
    with pytest.raises(IRError, match=f"{name}.*take {instead}"):
        from_jax(fn, matrix(3))


def test_of_an_empty_matrix_there_is_nothing_to_call() -> None:
    text = str(from_jax(jax.lax.linalg.eig, np.zeros((0, 0), np.float32), params=()))
    assert "tensor<0xcomplex<f32>>, tensor<0x0xcomplex<f32>>" in text


def full(a):
    return jnp.linalg.svd(a[:, :2])[1]


def part(a):
    return jax.lax.linalg.eigh(a + a.T, subset_by_index=(0, 2))[1]


def raw(a):
    return jnp.linalg.qr(a, mode="raw")


@pytest.mark.parametrize("fn", [full, part, raw])
@pytest.mark.parametrize("pass_", ["pcp-vjp", "pcp-jvp"])
def test_forms_without_a_derivative_are_refused(
    fn: Callable[..., object], pass_: str
) -> None:
    with pytest.raises(MissingRule, match=r"without a derivative.*; take"):
        transformed(str(from_jax(fn, matrix(3))), pass_)


def test_without_rules_there_is_no_derivative() -> None:
    text = str(from_jax(jnp.linalg.qr, matrix(3), rules=False))
    with pytest.raises(MissingRule, match=r"from_jax\(rules=False\) keeps none"):
        transformed(text, "pcp-vjp")


@pytest.mark.slow  # test_forward runs those of the same ops
def test_forms_without_a_derivative_run(iree: Iree) -> None:
    def forms(a):
        u, s, v = jnp.linalg.svd(a)
        packed, taus = raw(a)
        again = jax.lax.linalg.ormqr(packed.T, taus, a)
        return (u[:, :3] * s) @ v, u @ u.T, jnp.abs(u[:, 3:]), packed, taus, again

    a = matrix(4)[:, :3]
    text = transformed(str(from_jax(forms, a, rules=False)))
    ours = compiled(iree).run(text, [a])
    for x, y in zip(ours, jax.tree.leaves(forms(a)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
