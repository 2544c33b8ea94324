"""Every element type that an op supports, at least once for each op.

Narrow floats and complex numbers cannot cross into the interpreter: they are made
inside, from f32 or from two halves. The oracle of a narrow program is the same one
in f32 on the same (rounded) numbers, so that its error is that of the rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from helpers.oracles.jax_gradients import Case, array, positive
from jax import lax

A, B, P = array(3, 4), array(3, 4, seed=1), positive(3, 4)
SQUARE, IMAGE, KERNEL = array(4, 4), array(1, 5, 6, 2), array(2, 2, 2, 3)
INSIDE = array(3, 4, low=-0.9, high=0.9)
INDEX = np.array([2, 0, 2], np.int32)
START = np.int32(1)


def _conv(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _pool(fn, init):
    def run(x):
        start = np.asarray(init, x.dtype)
        return lax.reduce_window(x, start, fn, (2, 2), (1, 2), "VALID")

    return run


def _reduce(fn, init):
    return lambda x: lax.reduce(x, np.asarray(init, x.dtype), fn, (0,))


def _scanned(x, w):
    def step(h, row):
        h = h @ w * np.asarray(0.2, x.dtype) + row
        return h, h * row

    last, rows = lax.scan(step, x[0], x)
    return rows + last


def _general(a, b):
    return a + b + a * b


#: What is defined for real and complex numbers alike: name, function, arguments.
FIELD = {
    "add": (lax.add, (A, B)),
    "broadcast": (lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (1, 2)), (A,)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y]), (A, B)),
    "conv": (_conv, (IMAGE, KERNEL)),
    "cosine": (lax.cos, (A,)),
    "cumsum": (lambda x: lax.cumsum(x, 1), (A,)),
    "divide": (lax.div, (A, P)),
    "dot": (lambda x, y: x @ y.T, (A, B)),
    "dynamic_slice": (lambda x: lax.dynamic_slice(x, (START, START), (2, 2)), (A,)),
    "dynamic_update": (
        lambda x, u: lax.dynamic_update_slice(x, u, (START, START)),
        (A, B[:2, :2]),
    ),
    "exponential": (lax.exp, (A,)),
    "gather": (lambda x: x[INDEX], (A,)),
    "log": (lax.log, (P,)),
    "log_plus_one": (lax.log1p, (P,)),
    "logistic": (lax.logistic, (A,)),
    "multiply": (lax.mul, (A, B)),
    "negate": (lax.neg, (A,)),
    "pad": (lambda x: lax.pad(x, x[0, 0], ((1, 0, 1), (-1, 2, 0))), (A,)),
    "power": (lax.pow, (P, A)),
    "product": (_reduce(lax.mul, 1), (A,)),
    "reduce_any": (_reduce(_general, 0), (A,)),
    "reshape": (lambda x: x.reshape(2, 6), (A,)),
    "reverse": (lambda x: lax.rev(x, (1,)), (A,)),
    "rsqrt": (lax.rsqrt, (P,)),
    "scan": (_scanned, (A, SQUARE)),
    "scatter_add": (lambda x, u: x.at[INDEX].add(u), (A, B)),
    "scatter_set": (lambda x, u: x.at[INDEX[:2]].set(u), (A, B[:2])),
    "select": (lambda x, y: jnp.where(np.arange(4) > 1, x, y), (A, B)),
    "sine": (lax.sin, (A,)),
    "slice": (lambda x: lax.slice(x, (0, 1), (3, 4), (2, 2)), (A,)),
    "sqrt": (lax.sqrt, (P,)),
    "subtract": (lax.sub, (A, B)),
    "sum": (_reduce(lax.add, 0), (A,)),
    "tan": (lax.tan, (INSIDE,)),
    "tanh": (lax.tanh, (A,)),
    "transpose": (lambda x: x.T, (A,)),
    "expm1": (lax.expm1, (A,)),
}
#: What needs an order, or has no complex form here.
REAL = {
    "abs": (lax.abs, (A,)),
    "atan2": (lax.atan2, (A, B)),
    "cbrt": (lax.cbrt, (P,)),
    "clamp": (lambda x, y: lax.clamp(np.asarray(-1, x.dtype), x, y), (A, P)),
    "cummax": (lambda x: lax.cummax(x, 1), (A,)),
    "max": (_reduce(lax.max, -np.inf), (A,)),
    "max_pool": (_pool(lax.max, -np.inf), (A,)),
    "maximum": (lax.max, (A, B)),
    "minimum": (lax.min, (A, B)),
    "remainder": (lax.rem, (A, P)),
    "scatter_max": (lambda x, u: x.at[INDEX].max(u), (A, B)),
    "scatter_multiply": (
        lambda x, u: x.at[INDEX[:2]].multiply(u, unique_indices=True),
        (A, B[:2]),
    ),
    "sort": (lambda x: lax.sort(x, dimension=1), (A,)),
    "sum_pool": (_pool(lax.add, 0), (A,)),
    "top_k": (lambda x: lax.top_k(x, 2)[0], (A,)),
    "acos": (lax.acos, (INSIDE,)),
    "acosh": (lax.acosh, (P + 1,)),
    "asin": (lax.asin, (INSIDE,)),
    "asinh": (lax.asinh, (A,)),
    "atan": (lax.atan, (A,)),
    "atanh": (lax.atanh, (INSIDE,)),
    "bessel_i1e": (lax.bessel_i1e, (A,)),
    "cosh": (lax.cosh, (A,)),
    "digamma": (lax.digamma, (P,)),
    "erf": (lax.erf, (A,)),
    "erf_inv": (lax.erf_inv, (INSIDE,)),
    "erfc": (lax.erfc, (A,)),
    "lgamma": (lax.lgamma, (P,)),
    "sinh": (lax.sinh, (A,)),
    "square": (lax.square, (A,)),
}
#: What is only defined for complex numbers, or differs for them.
COMPLEX = {
    "abs": (lax.abs, (P,)),
    "angle": (jnp.angle, (P,)),
    "conj": (lambda z: lax.conj(z) * z, (P,)),
    "fft": (jnp.fft.fft, (A,)),
    "ifft": (jnp.fft.ifft, (A,)),
    "imag": (lambda z: (z * z).imag, (A,)),
    "real": (lambda z: (z * z).real, (A,)),
}
#: Tolerances: a few roundings of the type, relative to terms of size one.
NARROW = {"float16": 5e-3, "bfloat16": 4e-2}


@dataclass(frozen=True)
class Typed:
    """A program in some element type, and the function that says what it computes."""

    name: str
    program: Callable[..., Any]
    oracle: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    tolerance: float
    is_double: bool = False
    platform: str | None = None

    def __str__(self) -> str:
        return self.name

    def case(self) -> Case:
        """With the program's text; made under jax's switch for doubles."""
        traced = jax.jit(self.program, keep_unused=True).trace(*self.args)
        platforms = (self.platform,) if self.platform else None
        text = traced.lower(lowering_platforms=platforms).as_text()
        tolerance = self.tolerance
        return Case(self.name, self.oracle, self.args, text=text, tolerance=tolerance)


def _narrow(name: str, fn: Callable[..., Any], args: tuple[Any, ...], dtype: str):
    """In `dtype` between conversions; the oracle is the function in f32."""

    def program(*xs: Any) -> Any:
        return fn(*(x.astype(dtype) for x in xs)).astype(jnp.float32)

    rounded = tuple(np.asarray(jnp.asarray(x, dtype), np.float32) for x in args)
    return Typed(f"{name}_{dtype}", program, fn, rounded, NARROW[dtype])


def _complex(name: str, fn: Callable[..., Any], args: tuple[Any, ...], dtype: str):
    """On complex numbers made of two halves each, and taken apart at the end."""

    def program(*halves: Any) -> Any:
        pairs = zip(halves[::2], halves[1::2], strict=True)
        z = fn(*(lax.complex(a, b) for a, b in pairs))
        return [z.real, z.imag] if jnp.iscomplexobj(z) else [z]

    is_double = dtype == "complex128"
    part = np.float64 if is_double else np.float32
    turned = (np.flip(x) * np.float32(0.4) for x in args)
    halves = [h.astype(part) for pair in zip(args, turned, strict=True) for h in pair]
    tolerance = 1e-10 if is_double else 3e-5
    full = f"{name}_{dtype}"
    return Typed(full, program, program, tuple(halves), tolerance, is_double)


def _double(name: str, fn: Callable[..., Any], args: tuple[Any, ...]):
    given = tuple(x.astype(np.float64) for x in args)
    return Typed(f"{name}_float64", fn, fn, given, 1e-10, is_double=True)


def _solve(a: Any, b: Any) -> Any:
    """Written for a TPU, where it stays one op."""
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=True, conjugate_a=jnp.iscomplexobj(a)
    )


STEEP = SQUARE + 3 * np.eye(4, dtype=np.float32)
SYSTEMS = [
    replace(typed, platform="tpu")
    for typed in (
        _double("solve", _solve, (STEEP, SQUARE)),
        _complex("solve", _solve, (STEEP, SQUARE), "complex64"),
        _complex("solve", _solve, (STEEP, SQUARE), "complex128"),
    )
]
CASES = [
    *SYSTEMS,
    *(
        _narrow(n, fn, args, d)
        for n, (fn, args) in {**FIELD, **REAL}.items()
        for d in NARROW
    ),
    *(_double(n, fn, args) for n, (fn, args) in {**FIELD, **REAL}.items()),
    *(
        _complex(n, fn, args, d)
        for n, (fn, args) in {**FIELD, **COMPLEX}.items()
        for d in ("complex64", "complex128")
    ),
]
