"""Derivative cases of the elementwise chapter."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.oracles.jax_gradients import Case, array, integers, positive
from jax import lax

X, Y, P, Q = array(3, 4), array(3, 4, seed=1), positive(3, 4), positive(3, 4, seed=1)
SMALL = array(3, 4, low=-0.9, high=0.9)

UNARY = {
    "abs": (lax.abs, X),
    "cbrt": (lax.cbrt, X),
    "cosine": (lax.cos, X),
    "exponential": (lax.exp, X),
    "exponential_minus_one": (lax.expm1, X),
    "log": (lax.log, P),
    "log_plus_one": (lax.log1p, P),
    "negate": (lax.neg, X),
    "rsqrt": (lax.rsqrt, P),
    "sine": (lax.sin, X),
    "sqrt": (lax.sqrt, P),
    "tan": (lax.tan, SMALL),
    "tanh": (lax.tanh, X),
}
#: Where a formula could divide by zero or leave its range.
EDGES = np.array([0.0, -0.0, 1.0, -1.0, 1e-30, 30.0, -30.0], np.float32)
EDGE_OPS = (
    "abs",
    "exponential",
    "exponential_minus_one",
    "tanh",
    "sqrt",
    "log",
    "rsqrt",
)

BINARY = {
    "add": (lax.add, X, Y),
    "subtract": (lax.sub, X, Y),
    "multiply": (lax.mul, X, Y),
    "divide": (lax.div, X, Q),
    "maximum": (lax.max, X, Y),
    "minimum": (lax.min, X, Y),
    "atan2": (lax.atan2, X, Y),
    "power": (lax.pow, P, Y),
    "remainder": (lax.rem, X, Q),
}


def _logistic_text(shape: str) -> str:
    return f"""
func.func @main(%x: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{
  %y = stablehlo.logistic %x : tensor<{shape}xf32>
  return %y : tensor<{shape}xf32>
}}"""


def _clamp_scalars(name: str, low: float, high: float) -> Case:
    """Scalar bounds: the op allows them, jax has no derivative for them."""
    text = """
func.func @main(%a: tensor<f32>, %x: tensor<3x4xf32>, %b: tensor<f32>)
    -> tensor<3x4xf32> {
  %y = stablehlo.clamp %a, %x, %b
    : (tensor<f32>, tensor<3x4xf32>, tensor<f32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}"""

    def fn(a, x, b):
        return lax.clamp(jnp.full_like(x, a), x, jnp.full_like(x, b))

    return Case(name, fn, (np.float32(low), X, np.float32(high)), text=text)


def _complex(fn):
    """A complex function on pairs of reals: the interpreter's results are real."""

    def wrapped(re, im):
        out = fn(lax.complex(re, im))
        return [lax.real(out), lax.imag(out)] if jnp.iscomplexobj(out) else out

    return wrapped


COMPLEX = {
    "abs": lax.abs,
    "exponential": lax.exp,
    "log": lax.log,
    "sine": lax.sin,
    "tanh": lax.tanh,
    "multiply": lambda z: z * (z + (1 + 2j)),
    "divide": lambda z: z / (z + (3 + 2j)),
    "conj": lax.conj,
    "real": lax.real,
    "imag": lax.imag,
    "sqrt": lax.sqrt,
    "power": lambda z: lax.pow(z, z * (0.5 + 0j)),
    "power_constant": lambda z: lax.pow(z, jnp.full_like(z, 2.5)),
    "convert": lambda z: lax.convert_element_type(lax.real(z), jnp.complex64) * z,
}

CASES = [
    *(Case(name, fn, (x,)) for name, (fn, x) in UNARY.items()),
    *(Case(f"{name}_scalar", fn, (x[0, 0],)) for name, (fn, x) in UNARY.items()),
    *(Case(f"{n}_edges", UNARY[n][0], (EDGES,)) for n in EDGE_OPS),
    *(Case(name, fn, (a, b)) for name, (fn, a, b) in BINARY.items()),
    *(Case(f"{n}_rhs", fn, (a, b), wrt=(1,)) for n, (fn, a, b) in BINARY.items()),
    *(
        Case(f"{n}_self", lambda x, fn=fn: fn(x, x), (P,))
        for n, (fn, *_) in BINARY.items()
    ),
    *(
        Case(f"complex_{name}", _complex(fn), (X, Q), tolerance=2e-5)
        for name, fn in COMPLEX.items()
    ),
    *(
        Case(f"logistic_{shape}", jax.nn.sigmoid, (x,), text=_logistic_text(shape))
        for shape, x in (("3x4", X), ("7", EDGES), ("0x4", X[:0]))
    ),
    Case(
        "max_ties",
        lambda x: lax.max(x, jnp.float32(0)),
        (np.array([-1, 0, 2], np.float32),),
    ),
    Case(
        "min_ties",
        lambda x: lax.min(x, jnp.float32(0)),
        (np.array([-1, 0, 2], np.float32),),
    ),
    Case("power_square", lambda x: lax.pow(x, jnp.full_like(x, 2.0)), (X,)),
    Case("power_cube", lambda x: lax.pow(x, jnp.full_like(x, 3.0)), (X,)),
    Case("power_one", lambda x: lax.pow(x, jnp.full_like(x, 1.0)), (X,)),
    Case("power_zero", lambda x: lax.pow(x, jnp.full_like(x, 0.0)), (P,)),
    Case("power_half", lambda x: lax.pow(x, jnp.full_like(x, 0.5)), (P,)),
    Case("power_base_zero", lax.pow, (EDGES[:2], np.array([1.0, 2.0], np.float32))),
    Case("integer_pow", lambda x: lax.integer_pow(x, -3), (P,)),
    Case("clamp", lambda x: lax.clamp(-1.0, x, 1.0), (X,)),
    Case("clamp_tensors", lax.clamp, (X, array(3, 4, seed=5), X + 1)),
    _clamp_scalars("clamp_scalars", -0.5, 0.5),
    _clamp_scalars("clamp_crossed", 0.5, -0.5),
    Case("clamp_at_bounds", lambda x: lax.clamp(-1.0, x, 1.0), (EDGES,)),
    Case("select", lambda x, y: lax.select(x > y, x * 2, y * 3), (X, Y)),
    Case("select_scalar", lambda p, x, y: jnp.where(p, x, y), (np.bool_(True), X, Y)),
    Case("select_one_side", lambda x: jnp.where(x > 0, x, 1.0), (X,)),
    Case(
        "convert_f16",
        lambda x: x.astype(jnp.float16).astype(jnp.float32),
        (X,),
        tolerance=1e-3,
    ),
    Case(
        "convert_bf16",
        lambda x: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32),
        (X,),
        tolerance=1e-2,
    ),
    Case("convert_int", lambda x: x * x.astype(jnp.int32).astype(jnp.float32), (X,)),
    Case(
        "convert_from_int", lambda i, x: i.astype(jnp.float32) * x, (integers(3, 4), X)
    ),
    Case(
        "reduce_precision",
        lambda x: lax.reduce_precision(x, 8, 7),
        (X,),
        tolerance=1e-2,
    ),
    Case(
        "reduce_precision_half",
        lambda x: lax.reduce_precision(x, 5, 10),
        (X,),
        tolerance=1e-3,
    ),
    Case("rounding", lambda x: x * (lax.floor(x) + lax.ceil(x) + lax.round(x)), (X,)),
    Case("sign", lambda x: x * lax.sign(x), (X,)),
    Case(
        "boolean",
        lambda x: jnp.where((x > 0) & ~(x > 1) | (x < -1) ^ (x < 0), x, 0.0),
        (X,),
    ),
    Case("is_finite", lambda x: jnp.where(lax.is_finite(x), x, 0.0), (X,)),
    Case(
        "bits",
        lambda x: (
            x
            * lax.bitcast_convert_type(
                lax.bitcast_convert_type(x, jnp.int32) >> 1, jnp.float32
            )
        ),
        (P,),
    ),
    Case("fan_out", lambda x: (x * x + x * lax.sin(x), x), (X,)),
    Case("unused", lambda x, y: lax.sin(x), (X, Y)),
    Case("empty", lambda x: lax.tanh(x) * x, (X[:0],)),
]
