"""Derivatives that JAX once got wrong, and edges its issue tracker knows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.jax_gradients import (
    Case,
    array,
    assert_close,
    check_jvp,
    check_vjp,
    derivative_case,
    positive,
    transformed,
)
from helpers.servers.interpreter import Interpreter
from jax import lax

X = array(3, 4)
TABLE = array(5, 5)
ROW = array(1, 5)


def _f32(x):
    return np.float32(x)


def _index(i, **options):
    return lambda x: lax.dynamic_index_in_dim(x, i, 0, **options).sum()


def _vmapped_slice(x):
    rows = jnp.array([1, -9, 7, 0])
    return jax.vmap(partial(lax.dynamic_index_in_dim, x, axis=0))(rows)


def _vmapped_scatter(x):
    def put(row, i):
        return row.at[i].set(jnp.cos(row).sum())

    return jax.vmap(put)(x, jnp.array([1, 3, -1]))


def _parts(z):
    return [lax.real(z), lax.imag(z)]


def _out_of_bounds_segments(x):
    where = jnp.array([0, 5, -1, 2, 2])
    return jax.ops.segment_sum(x, where, num_segments=3)


CASES = [
    Case("reciprocal", lambda x: 1 / x, (_f32(4.0),)),
    *(
        Case(f"power_{n}_at_zero", lambda x, n=n: x**n, (_f32(0.0),))
        for n in (0, 1, 2, 3)
    ),
    Case("power_traced_integer_at_zero", lambda x, n: x**n, (_f32(0.0), np.int32(0))),
    Case(
        "powers_of_a_range",
        lambda z: (z ** jnp.arange(0, 2, dtype=jnp.int32)).sum(),
        (_f32(3.14),),
    ),
    Case(
        "powers_of_a_float_range",
        lambda z: (z ** jnp.arange(0, 2, dtype=jnp.float32)).sum(),
        (_f32(3.14),),
    ),
    Case("power_of_zero_exponent", lax.pow, (_f32(4.0), _f32(0.0))),
    Case("zero_to_the_zero", lax.pow, (_f32(0.0), _f32(0.0))),
    Case("power_shapes_mismatch", lambda x: lax.pow(x, 2), (positive(4),)),
    Case("index_far_below", _index(-8), (TABLE,)),
    Case("index_far_above", _index(8), (TABLE,)),
    Case(
        "update_far_below",
        lambda x, y: lax.dynamic_update_index_in_dim(x, y, -8, 0).sum(),
        (TABLE, ROW),
    ),
    Case("vmap_of_slice_out_of_bounds", _vmapped_slice, (TABLE,)),
    Case("vmap_of_scatter", _vmapped_scatter, (array(3, 4),)),
    Case("segment_sum_out_of_bounds", _out_of_bounds_segments, (array(5, 2),)),
    Case("real_of_complex", lambda a, b: lax.real(lax.complex(a, b)), (X, X)),
    Case("imag_of_complex", lambda a, b: lax.imag(lax.complex(a, b)), (X, X)),
    Case(
        "abs_of_complex_zero",
        lambda a, b: lax.abs(lax.complex(a, b)),
        (np.zeros(3, np.float32), np.array([0.0, 1.0, -2.0], np.float32)),
    ),
    Case(
        "complex_reciprocal",
        lambda a, b: _parts(1 / lax.complex(a, b)),
        (positive(3), positive(3, seed=1)),
    ),
    Case(
        "dot_of_narrow_into_wide",
        lambda x, y: lax.dot_general(
            x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        ),
        (array(2, 3).astype(np.float16), array(3, 4).astype(np.float16)),
        tolerance=2e-3,
    ),
    Case(
        "conv_of_narrow_into_wide",
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "VALID", preferred_element_type=jnp.float32
        ),
        (
            array(1, 2, 4, 4).astype(np.float16),
            array(3, 2, 2, 2).astype(np.float16),
        ),
        tolerance=4e-3,
    ),
    Case(
        "multiply_out_type",
        lambda x, y: lax.mul(x.astype(jnp.float16), y).astype(jnp.float32),
        (X, array(3, 4).astype(np.float16)),
        tolerance=2e-3,
    ),
    Case("stop_gradient_beside", lambda x: jnp.sin(x) * lax.stop_gradient(2.0), (X,)),
    Case("square_of_itself", lambda x: x * x * x + x, (X,)),
    Case("where_guards_the_root", lambda x: jnp.where(x > 0, x, 1.0) ** 0.5, (X,)),
    Case("sum_of_nothing", lambda x: x[:0].sum(), (X,)),
    Case("max_of_one", lambda x: x.max(axis=1), (array(5, 1),)),
    Case("sort_of_ties", lambda x: jnp.sort(x), (np.array([1, 1, 0], np.float32),)),
    Case("product_with_zeros", jnp.prod, (np.array([2, 0, 3, 0], np.float32),)),
    Case("cumulative_maximum", lambda x: lax.cummax(x, 1), (X,)),
    Case("cumulative_log_sum", lambda x: lax.cumlogsumexp(x, 0), (X,)),
    Case("remainder_of_negatives", lax.rem, (X, positive(3, 4, seed=3))),
    Case("clamp_at_its_bounds", lambda x: lax.clamp(-1.0, x, 1.0), (X,)),
]

#: Second derivatives that are not those of the formula JAX differentiates.
FIRST_ORDER_ONLY = {
    "zero_to_the_zero": "both are NaN or infinite by the order of operations",
    "abs_of_complex_zero": "no derivative exists; the second one is a matter of form",
    "dot_of_narrow_into_wide": "the rounding to 11 bits is compared once",
    "conv_of_narrow_into_wide": "the rounding to 11 bits is compared once",
    "multiply_out_type": "the rounding to 11 bits is compared once",
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_modes(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)
    check_jvp(case, interpreter)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name not in FIRST_ORDER_ONLY], ids=str
)
def test_order_two(case: Case, interpreter: Interpreter) -> None:
    second = derivative_case(case)
    check_vjp(second, interpreter)
    check_jvp(second, interpreter)


def test_six_gradients_of_the_reciprocal(interpreter: Interpreter) -> None:
    """d⁶/dx⁶ 1/x = 720/x⁷."""
    text = jax.jit(lambda x: 1 / x).lower(_f32(4.0)).as_text()
    sixth = transformed(text, *["pcp-vjp{wrt=0}"] * 6)
    last_of = [[0.0] * k + [1.0] for k in range(6)]  # each differentiates the last
    seeds = [_f32(g) for cotangents in last_of for g in cotangents]
    *_, ours = interpreter.run(sixth, [_f32(4.0), *seeds])
    assert_close(ours, _f32(720 / 4**7), 1e-5, "sixth derivative of 1/x")


def test_pow_second_derivatives(interpreter: Interpreter) -> None:
    """∂²/∂y² x^y at y = 0 is (log x)², the mixed one 1/x, and ∂²/∂x² is zero."""
    x, y = _f32(4.0), _f32(0.0)
    text = jax.jit(lax.pow).lower(x, y).as_text()
    twice = transformed(text, "pcp-vjp{wrt=0,1}", "pcp-vjp{wrt=0,1}")
    one, zero = _f32(1.0), _f32(0.0)
    *_, xx, xy = interpreter.run(twice, [x, y, one, zero, one, zero])
    *_, yx, yy = interpreter.run(twice, [x, y, one, zero, zero, one])
    for ours, theirs in ((xx, 0.0), (xy, 0.25), (yx, 0.25), (yy, np.log(4.0) ** 2)):
        assert_close(ours, _f32(theirs), 1e-5, "second derivative of pow")
