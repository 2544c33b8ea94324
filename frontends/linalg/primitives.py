"""What becomes of JAX's primitives of linear algebra, whatever machine traces them.

JAX lowers them to calls of the host's library: LAPACK, cuSOLVER, or XLA's own on TPUs.
Two are ops of StableHLO. For the factorizations there are functions of our own, with
the operands, parameters and results of the primitive. The others are refused.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from pcp.errors import IRError
from pcp.frontends.linalg import elimination, jacobi, reflections


def _qr(a: Any, *, pivoting: bool, full_matrices: bool, **_: Any) -> list[Any]:
    if pivoting:
        raise IRError(refusal("geqp3"))
    return reflections.qr(a, full_matrices=full_matrices)


#: By the primitive's name; all give a list.
FACTORIZATIONS: dict[str, Callable[..., list[Any]]] = {
    "eigh": jacobi.eigh,
    "geqrf": reflections.geqrf,
    "householder_product": reflections.householder_product,
    "lu": elimination.lu,
    "ormqr": reflections.ormqr,
    "qr": _qr,
    "svd": jacobi.svd,
}

#: By the primitive's name: (the functions that users call, what to do instead)
REFUSED = {
    "eig": (
        "jnp.linalg.eig, eigvals and roots",
        "jnp.linalg.eigh for a Hermitian matrix, jnp.linalg.svd for any",
    ),
    "geqp3": ("jax.scipy.linalg.qr(pivoting=True)", "jnp.linalg.qr or svd"),
    "hessenberg": ("jax.scipy.linalg.hessenberg", "jnp.linalg.qr or eigh"),
    "schur": (
        "jax.scipy.linalg.schur, sqrtm and funm",
        "jnp.linalg.eigh for a Hermitian matrix: (v * f(w)) @ v.conj().T",
    ),
    "tridiagonal": ("jax.lax.linalg.tridiagonal", "jnp.linalg.eigh"),
    "tridiagonal_solve": (
        "jax.lax.linalg.tridiagonal_solve",
        "jnp.linalg.solve of the whole matrix",
    ),
}


def refusal(name: str) -> str:
    """What is wrong with a primitive of `REFUSED`, and the way out."""
    users, instead = REFUSED[name]
    return (
        f"{users}: JAX calls the host's library for it ({name}), which a program for "
        f"other machines cannot; take {instead}"
    )


def factorizations() -> list[Any]:
    """The primitives of `FACTORIZATIONS`."""
    raw = jax.make_jaxpr(lambda a: jnp.linalg.qr(a, mode="raw"))(jnp.zeros((1, 1)))
    geqrf = _inner(raw.jaxpr)  # it has no public name
    return [geqrf, *(_primitive(name) for name in FACTORIZATIONS if name != "geqrf")]


def refused() -> list[Any]:
    """The primitives of `REFUSED` but geqp3, which is a form of qr."""
    return [_primitive(name) for name in REFUSED if name != "geqp3"]


def operations() -> tuple[tuple[Any, Any], ...]:
    """The primitives that are ops of StableHLO, with JAX's rules to lower them."""
    linalg = lax.linalg
    return (
        (linalg.cholesky_p, _cholesky),
        (linalg.triangular_solve_p, _triangular_solve),
    )


def _primitive(name: str) -> Any:
    return getattr(lax.linalg, f"{name}_p")


def _inner(jaxpr: Any) -> Any:
    """The primitive of that name, in a jaxpr or one that it calls."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "geqrf":
            return eqn.primitive
        if "jaxpr" in eqn.params:
            return _inner(eqn.params["jaxpr"].jaxpr)
    raise AssertionError("jnp.linalg.qr(mode='raw') is no longer made by geqrf")


def factorize(name: str, *operands: Any, **params: Any) -> list[Any]:
    """What the primitive gives; floats narrower than 32 bits are computed in f32.

    IREE 3.13 makes a circle of a loop's operand and another value that are made in one
    dispatch ("circular dependency"): a barrier keeps the operands apart.
    """
    given = operands[0].dtype
    narrow = jnp.finfo(given).bits < 32
    wide = [x.astype(jnp.float32) if narrow else x for x in operands]
    found = FACTORIZATIONS[name](*lax.optimization_barrier(wide), **params)
    floats = [narrow and jnp.issubdtype(x.dtype, jnp.floating) for x in found]
    pairs = zip(found, floats, strict=True)
    return [x.astype(given) if is_float else x for x, is_float in pairs]


def inlined(ctx: Any, *operands: Any, **params: Any) -> Any:
    """A rule for JAX to lower a factorization where it stands."""
    function = partial(factorize, ctx.primitive.name)
    return mlir.lower_fun(function, multiple_results=True)(ctx, *operands, **params)


def refuse(ctx: Any, *operands: Any, **_: Any) -> Any:
    """The error for what is neither an op nor written here; of no element, nothing."""
    if not any(aval.size for aval in ctx.avals_out):
        empty = [jnp.zeros(aval.shape, aval.dtype) for aval in ctx.avals_out]
        return mlir.lower_fun(lambda *_: empty, multiple_results=True)(ctx, *operands)
    raise IRError(refusal(ctx.primitive.name))


def _cholesky(_: Any, a: Any) -> list[Any]:
    return [stablehlo.cholesky(a, lower=_bool(True))]


def _triangular_solve(
    _: Any,
    a: Any,
    b: Any,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> list[Any]:
    if conjugate_a and not transpose_a:
        a = _conjugate(a)
    how = ("ADJOINT" if conjugate_a else "TRANSPOSE") if transpose_a else "NO_TRANSPOSE"
    flags = [_bool(x) for x in (left_side, lower, unit_diagonal)]
    transpose = stablehlo.TransposeAttr.get(how)
    return [stablehlo.triangular_solve(a, b, *flags, transpose_a=transpose)]


def _conjugate(a: Any) -> Any:
    real, imag = stablehlo.real(a), stablehlo.imag(a)
    return stablehlo.complex(real, stablehlo.negate(imag))


def _bool(value: bool) -> Any:
    return mlir.ir.BoolAttr.get(value)
