"""Derivative cases of fft and triangular_solve (cholesky has its own test)."""

import jax.numpy as jnp
import numpy as np
from helpers.oracles.jax_gradients import Case, array
from jax import lax

A = array(3, 3) + 4 * np.eye(3, dtype=np.float32)
BATCH = array(2, 3, 3) + 4 * np.eye(3, dtype=np.float32)


def _parts(x):
    return [lax.real(x), lax.imag(x)]


def _fft(kind, lengths):
    return lambda re, im: _parts(lax.fft(lax.complex(re, im), kind, lengths))


def _solve(**flags):
    return lambda a, b: lax.linalg.triangular_solve(a, b, **flags)


def _complex_solve(**flags):
    def fn(a, b, c, d):
        a, b = lax.complex(a, b), lax.complex(c, d)
        return _parts(lax.linalg.triangular_solve(a, b, **flags))

    return fn


FLAGS = {
    "plain": {"left_side": True, "lower": True},
    "upper": {"left_side": True, "lower": False},
    "right": {"left_side": False, "lower": True},
    "right_upper_transposed": {"left_side": False, "transpose_a": True},
    "transposed": {"left_side": True, "lower": True, "transpose_a": True},
    "unit": {"left_side": True, "lower": True, "unit_diagonal": True},
    "unit_upper": {"left_side": False, "unit_diagonal": True},
}
ADJOINT = {
    "adjoint": {
        "left_side": True,
        "lower": True,
        "transpose_a": True,
        "conjugate_a": True,
    },
    "complex": {"left_side": True, "lower": True},
    "complex_right": {"left_side": False, "lower": True, "transpose_a": True},
}

SOLVE = [
    *(
        Case(
            f"solve_{name}",
            _solve(**flags),
            (A, array(3, 2) if flags["left_side"] else array(2, 3)),
            platform="tpu",
        )
        for name, flags in FLAGS.items()
    ),
    *(
        Case(
            f"solve_{name}",
            _complex_solve(**flags),
            (A, array(3, 3), array(3, 3, seed=2), array(3, 3, seed=3)),
            platform="tpu",
            tolerance=5e-5,
        )
        for name, flags in ADJOINT.items()
    ),
    Case(
        "solve_batched",
        _solve(left_side=True, lower=True),
        (BATCH, array(2, 3, 4)),
        platform="tpu",
    ),
    Case(
        "solve_rhs_only",
        _solve(left_side=True, lower=True),
        (BATCH, array(2, 3, 4)),
        wrt=(1,),
        platform="tpu",
    ),
]
#: Run by IREE: the interpreter ends its process on the real transforms.
FOURIER = [
    Case("fft", _fft("FFT", (8,)), (array(3, 8), array(3, 8, seed=1))),
    Case("ifft", _fft("IFFT", (8,)), (array(3, 8), array(3, 8, seed=1))),
    Case("rfft_even", lambda x: _parts(lax.fft(x, "RFFT", (8,))), (array(3, 8),)),
    Case("rfft_four", lambda x: _parts(lax.fft(x, "RFFT", (4,))), (array(4),)),
    Case(
        "irfft_even",
        lambda a, b: lax.fft(lax.complex(a, b), "IRFFT", (8,)),
        (array(3, 5), array(3, 5, seed=1)),
    ),
    Case(
        "irfft_four",
        lambda a, b: lax.fft(lax.complex(a, b), "IRFFT", (4,)),
        (array(3), array(3, seed=1)),
    ),
]
CASES = [*SOLVE, *FOURIER]


def cholesky(lower: bool):
    """The factor of the symmetric matrix whose one triangle is that of the input."""

    def fn(a):
        half = jnp.tril(a) if lower else jnp.triu(a)
        whole = half + jnp.swapaxes(half, -1, -2) - half * jnp.eye(a.shape[-1])
        factor = jnp.linalg.cholesky(whole, symmetrize_input=False)
        return factor if lower else jnp.swapaxes(factor, -1, -2)

    return fn
