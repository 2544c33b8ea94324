"""Derivative cases of reductions, windows and cumulative operations."""

import jax.numpy as jnp
import numpy as np
from helpers.oracles.jax_gradients import Case, array, positive
from jax import lax

X, CUBE = array(4, 5), array(2, 3, 4)
IMAGE = array(2, 7, 8, 3)
ZEROS = np.array([[0, 2, 3], [0, 0, 5], [1, 2, 4], [0, 1, 2]], np.float32)
TIES = np.array([[1, 3, 3], [2, 2, 2], [0, -1, 0]], np.float32)


def _reduce(fn, init, dims):
    return lambda x: lax.reduce(x, np.float32(init), fn, dims)


def _text_argmax(direction: str, init: str = "0xFF800000") -> str:
    """(value, index) of the extremum along dimension 1, as torch-mlir writes it."""
    return f"""
func.func @main(%x: tensor<4x5xf32>) -> (tensor<4xf32>, tensor<4xi32>) {{
  %i = stablehlo.iota dim = 0 : tensor<5xi32>
  %n = stablehlo.broadcast_in_dim %i, dims = [1] : (tensor<5xi32>) -> tensor<4x5xi32>
  %a = stablehlo.constant dense<{init}> : tensor<f32>
  %b = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.reduce(%x init: %a), (%n init: %b) across dimensions = [1]
    : (tensor<4x5xf32>, tensor<4x5xi32>, tensor<f32>, tensor<i32>)
    -> (tensor<4xf32>, tensor<4xi32>)
    reducer(%p: tensor<f32>, %q: tensor<f32>) (%j: tensor<i32>, %k: tensor<i32>) {{
    %c = stablehlo.compare {direction}, %p, %q
      : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %v = stablehlo.select %c, %p, %q : tensor<i1>, tensor<f32>
    %e = stablehlo.compare EQ, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %m = stablehlo.minimum %j, %k : tensor<i32>
    %s = stablehlo.select %c, %j, %k : tensor<i1>, tensor<i32>
    %w = stablehlo.select %e, %m, %s : tensor<i1>, tensor<i32>
    stablehlo.return %v, %w : tensor<f32>, tensor<i32>
  }}
  return %r#0, %r#1 : tensor<4xf32>, tensor<4xi32>
}}"""


def _complex_product(x, y):
    """The product of complex numbers held as pairs."""

    def multiply(a, b):
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    return lax.reduce((x, y), (np.float32(1), np.float32(0)), multiply, (0,))


REDUCE = [
    Case("sum_rows", _reduce(lax.add, 0, (0,)), (X,)),
    Case("sum_all", _reduce(lax.add, 0, (0, 1)), (X,)),
    Case("sum_middle", _reduce(lax.add, 0, (1,)), (CUBE,)),
    Case("sum_ends", _reduce(lax.add, 0, (0, 2)), (CUBE,)),
    Case("sum_nothing", _reduce(lax.add, 0, ()), (X,)),
    Case("sum_empty", _reduce(lax.add, 0, (0,)), (X[:0],)),
    Case("mean_variance", lambda x: (x.mean(0), x.var(1)), (X,)),
    Case("max_rows", _reduce(lax.max, -np.inf, (0,)), (X,)),
    Case("max_all", _reduce(lax.max, -np.inf, (0, 1, 2)), (CUBE,)),
    Case("max_ties", _reduce(lax.max, -np.inf, (1,)), (TIES,)),
    Case("min_rows", _reduce(lax.min, np.inf, (1,)), (X,)),
    Case("min_ties", _reduce(lax.min, np.inf, (1,)), (TIES,)),
    Case("product", _reduce(lax.mul, 1, (1,)), (X,)),
    Case("product_zeros", _reduce(lax.mul, 1, (1,)), (ZEROS,)),
    Case("product_all", _reduce(lax.mul, 1, (0, 1)), (positive(3, 4),)),
    Case(
        "argmax_pair",
        lambda x: (x.max(1), x.argmax(1).astype(np.int32)),
        (X,),
        text=_text_argmax("GE"),
    ),
    Case(
        "argmin_pair",
        lambda x: (x.min(1), x.argmin(1).astype(np.int32)),
        (X,),
        text=_text_argmax("LE", "0x7F800000"),
    ),
    Case("argmax", lambda x: x * (x.argmax(0) == 1), (X,)),
    Case("general_body", _reduce(lambda a, b: a + b + a * b, 0, (1,)), (X,)),
    Case("general_two_dims", _reduce(lambda a, b: a + b + a * b, 0, (0, 2)), (CUBE,)),
    Case(
        "general_power_of_two", _reduce(lambda a, b: a + b - 2 * a * b, 0, (0,)), (X,)
    ),
    Case("pair_body", _complex_product, (X, X + 1)),
    Case("pair_body_one_live", lambda x, y: _complex_product(x, y)[1], (X, X + 1)),
    Case("any_all", lambda x: x * (jnp.any(x > 0, 0) & jnp.all(x < 3, 0)), (X,)),
    Case(
        "softmax",
        lambda x: (
            jnp.exp(x - x.max(1, keepdims=True))
            / jnp.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)
        ),
        (X,),
    ),
]


def _window(fn, init, sizes, strides, padding, base=None, dilation=None):
    rank = len(sizes)

    def run(x):
        return lax.reduce_window(
            x,
            np.float32(init),
            fn,
            sizes,
            strides,
            padding,
            base or (1,) * rank,
            dilation or (1,) * rank,
        )

    return run


def _pool(fn, init, size, stride, padding):
    return _window(fn, init, (1, *size, 1), (1, *stride, 1), ((0, 0), *padding, (0, 0)))


NONE, SAME = ((0, 0), (0, 0)), ((1, 1), (1, 1))


def _dilated_text(name: str) -> str:
    """Windows of two elements that lie three apart."""
    init = {"maximum": "0xFF800000", "multiply": "1.0"}[name]
    return f"""
func.func @main(%x: tensor<4x5xf32>) -> tensor<4x2xf32> {{
  %c = stablehlo.constant dense<{init}> : tensor<f32>
  %y = "stablehlo.reduce_window"(%x, %c) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %v = stablehlo.{name} %a, %b : tensor<f32>
    stablehlo.return %v : tensor<f32>
  }}) {{window_dimensions = array<i64: 1, 2>, window_dilations = array<i64: 1, 3>}}
    : (tensor<4x5xf32>, tensor<f32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}}"""


WINDOWS = [
    Case("sum_pool", _pool(lax.add, 0, (2, 2), (2, 2), NONE), (IMAGE,)),
    Case("sum_pool_overlap", _pool(lax.add, 0, (3, 3), (1, 2), SAME), (IMAGE,)),
    Case(
        "sum_pool_dilated",
        _window(lax.add, 0, (2, 3), (1, 2), ((2, 1), (0, 3)), (2, 1), (2, 2)),
        (array(5, 9),),
    ),
    Case(
        "sum_pool_left_over", _window(lax.add, 0, (3,), (4,), ((0, 0),)), (array(10),)
    ),
    Case(
        "sum_pool_negative", _window(lax.add, 0, (2,), (1,), ((-1, -2),)), (array(9),)
    ),
    Case(
        "average_pool",
        lambda x: _pool(lax.add, 0, (2, 2), (2, 2), NONE)(x) / 4,
        (IMAGE,),
    ),
    Case("max_pool", _pool(lax.max, -np.inf, (2, 2), (2, 2), NONE), (IMAGE,)),
    Case("max_pool_overlap", _pool(lax.max, -np.inf, (3, 3), (2, 2), SAME), (IMAGE,)),
    Case(
        "max_pool_ties",
        _window(lax.max, -np.inf, (3,), (1,), ((1, 1),)),
        (np.array([1, 2, 2, 1, 1, 1, 3], np.float32),),
    ),
    Case(
        "max_pool_dilated",
        lambda x: lax.max(x[:, :-3], x[:, 3:]),
        (X,),
        text=_dilated_text("maximum"),
    ),
    Case(
        "product_pool_dilated",
        lambda x: x[:, :-3] * x[:, 3:],
        (X,),
        text=_dilated_text("multiply"),
    ),
    Case(
        "max_pool_large",
        _window(lax.max, -np.inf, (9, 9), (1, 1), SAME),
        (array(10, 11),),
    ),
    Case("min_pool", _pool(lax.min, np.inf, (2, 3), (1, 1), SAME), (IMAGE,)),
    Case("cumsum", lambda x: lax.cumsum(x, 0), (X,)),
    Case("cumsum_reverse", lambda x: lax.cumsum(x, 1, reverse=True), (X,)),
    Case("cumprod", lambda x: lax.cumprod(x, 1), (X,)),
    Case("cumprod_reverse", lambda x: lax.cumprod(x, 0, reverse=True), (X,)),
    Case("cummax", lambda x: lax.cummax(x, 1), (X,)),
    Case("cummin", lambda x: lax.cummin(x, 0), (X,)),
    Case("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), (X,)),
]


def _second_order_max_pool(x, g):
    """The derivative of a pool's own derivative holds select_and_scatter."""
    import jax

    pool = _pool(lax.max, -np.inf, (2, 2), (2, 2), NONE)
    return jax.vjp(pool, x)[1](g)[0]


SELECT = [
    Case("select_and_scatter", _second_order_max_pool, (IMAGE, array(2, 3, 4, 3))),
    Case(
        "select_and_scatter_source",
        _second_order_max_pool,
        (array(1, 4, 4, 1), array(1, 2, 2, 1)),
        wrt=(1,),
    ),
]
CASES = [*REDUCE, *WINDOWS, *SELECT]
