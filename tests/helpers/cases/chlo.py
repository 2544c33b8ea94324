"""Derivative cases of CHLO ops."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.oracles.jax_gradients import Case, array, positive
from jax import lax

X, P = array(3, 4), positive(3, 4)
INSIDE, OUTSIDE = array(3, 4, low=-0.9, high=0.9), array(3, 4, low=1.2, high=3.0)

UNARY = {
    "acos": (lax.acos, INSIDE),
    "acosh": (lax.acosh, OUTSIDE),
    "asin": (lax.asin, INSIDE),
    "asinh": (lax.asinh, X),
    "atan": (lax.atan, X),
    "atanh": (lax.atanh, INSIDE),
    "cosh": (lax.cosh, X),
    "digamma": (lax.digamma, P),
    "erf": (lax.erf, X),
    "erf_inv": (lax.erf_inv, INSIDE),
    "erfc": (lax.erfc, X),
    "lgamma": (lax.lgamma, P),
    "sinh": (lax.sinh, X),
    "square": (lax.square, X),
    "tan": (lax.tan, INSIDE),
}


def _text(op: str) -> str:
    return f"""
func.func @main(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {{
  %y = chlo.{op} %x : tensor<3x4xf32> -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}}"""


def _conj(a, b):
    z = lax.conj(lax.complex(a, b)) * lax.complex(b, a)
    return [lax.real(z), lax.imag(z)]


CONJ_TEXT = """
func.func @main(%a: tensor<3x4xf32>, %b: tensor<3x4xf32>)
    -> (tensor<3x4xf32>, tensor<3x4xf32>) {
  %z = stablehlo.complex %a, %b : tensor<3x4xcomplex<f32>>
  %w = stablehlo.complex %b, %a : tensor<3x4xcomplex<f32>>
  %c = chlo.conj %z : tensor<3x4xcomplex<f32>> -> tensor<3x4xcomplex<f32>>
  %m = stablehlo.multiply %c, %w : tensor<3x4xcomplex<f32>>
  %r = stablehlo.real %m : (tensor<3x4xcomplex<f32>>) -> tensor<3x4xf32>
  %i = stablehlo.imag %m : (tensor<3x4xcomplex<f32>>) -> tensor<3x4xf32>
  return %r, %i : tensor<3x4xf32>, tensor<3x4xf32>
}"""
ORDER = np.full((3, 4), 2.0, np.float32)


def zeta(x, q):
    """The defining sum; its rest after 400 terms is below 1e-7 for x = 4."""
    return ((q[..., None] + jnp.arange(400.0)) ** -x[..., None]).sum(-1)


ZETA_TEXT = """
func.func @main(%x: tensor<3x4xf32>, %q: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %y = chlo.zeta %x, %q : tensor<3x4xf32>, tensor<3x4xf32> -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}"""
#: Around zero, at the seam of the two series of its derivative, and beyond.
FAR = np.array([0, 1e-8, -0.3, 1.5, 7.9, 8.0, -8.1, 20.0, 300.0], np.float32)


def _bessel_text(shape: str) -> str:
    return _text("bessel_i1e").replace("3x4", shape)


CASES = [
    Case("bessel_i1e", lax.bessel_i1e, (X,), text=_text("bessel_i1e"), tolerance=3e-5),
    Case(
        "bessel_i1e_far",
        lax.bessel_i1e,
        (FAR,),
        text=_bessel_text("9"),
        tolerance=3e-5,
    ),
    Case("bessel_i1e_lowered", lax.bessel_i1e, (P * 6,), tolerance=3e-5),
    *(
        Case(name, fn, (x,), text=_text(name), tolerance=3e-5)
        for name, (fn, x) in UNARY.items()
    ),
    *(
        Case(f"{name}_lowered", fn, (x[0],), tolerance=3e-5)
        for name, (fn, x) in UNARY.items()
    ),
    Case("conj", _conj, (X, P), text=CONJ_TEXT),
    Case("polygamma", lax.polygamma, (ORDER, P), wrt=(1,), tolerance=1e-4),
    Case("zeta", zeta, (ORDER + 2, P), wrt=(1,), text=ZETA_TEXT, tolerance=1e-4),
    Case("top_k", lambda x: lax.top_k(x, 2), (X,)),
    Case("top_k_vector", lambda x: lax.top_k(x, 3)[0], (X[0],)),
    Case("top_k_batched", lambda x: lax.top_k(x, 2)[0] * 2, (array(2, 3, 5),)),
    Case("gelu", lambda x: jax.nn.gelu(x, approximate=False), (X,)),
    Case("logit", lambda x: jax.scipy.special.xlogy(x, x) + jnp.sinh(x), (P,)),
    Case("infinite", lambda x: jnp.where(jnp.isinf(x), 0.0, x * x), (X,)),
]
