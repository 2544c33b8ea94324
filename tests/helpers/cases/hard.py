"""Forms and inputs that derivative rules get wrong first.

Active initial values, ties, zeros, infinities, NaN, indices out of bounds, empty and
size-1 dimensions, one value as both operands, unusual comparators and windows.
"""

import jax.numpy as jnp
import numpy as np
from helpers.cases.composed import main
from helpers.cases.initial_values import INITIAL, R, S, V
from helpers.oracles.jax_gradients import Case, array, integers
from jax import lax

X = array(4, 5)

# --- products: exact where elements are zero, in every order ---


def _reduced(x):
    return lax.reduce(x, np.float32(1), lax.mul, (1,))


ZEROS = np.array([[0, 2, 3], [0, 0, 5], [1, 2, 4], [0, 0, 0]], np.float32)
PRODUCTS = [
    Case("product_no_two_zeros", _reduced, (ZEROS,)),
    Case("product_large", _reduced, (array(2, 9, low=-1.5, high=1.5),)),
    Case("product_tiny", _reduced, (array(2, 5) * np.float32(1e-5),)),
    Case(
        "product_infinite",
        _reduced,
        (np.array([[np.inf, 2, 3], [np.inf, 0, 1]], np.float32),),
    ),
    Case("product_one", _reduced, (array(4, 1),)),
    Case("product_none", lambda x: _reduced(x[:, :0]) + x[:, 0], (X,)),
]

# --- sort ---


def _sort_text(direction: str, compared: str) -> str:
    pair = f"{R}, {R}"
    return main(
        f"%x: {R}, %y: {R}",
        f"""%s:2 = "stablehlo.sort"(%x, %y) ({{
  ^bb0(%a: {S}, %b: {S}, %c: {S}, %d: {S}):
    {compared}
    %p = stablehlo.compare {direction}, %l, %r : ({S}, {S}) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }}) {{dimension = 0 : i64, is_stable = true}} : ({pair}) -> ({pair})""",
        ("%s#0", R),
        ("%s#1", R),
    )


ABSOLUTE = f"%l = stablehlo.abs %a : {S}\n    %r = stablehlo.abs %b : {S}"
SUMMED = f"%l = stablehlo.add %a, %c : {S}\n    %r = stablehlo.add %b, %d : {S}"


def _by(key, descending=False):
    def fn(x, y):
        order = jnp.argsort(key(x, y), stable=True, descending=descending)
        return x[order], y[order]

    return fn


KEYS = np.array([0.5, -2.0, 1.0], np.float32)
SORTS = [
    Case(
        "sort_by_absolute",
        _by(lambda x, y: abs(x)),
        (KEYS, array(3)),
        text=_sort_text("LT", ABSOLUTE),
    ),
    Case(
        "sort_by_sum",
        _by(lambda x, y: x + y, descending=True),
        (KEYS, array(3)),
        text=_sort_text("GT", SUMMED),
    ),
    Case(
        "sort_two_keys",
        lambda x, y, z: lax.sort((x, y, z), dimension=0, num_keys=2),
        (np.round(X), array(4, 5, seed=1), array(4, 5, seed=2)),
    ),
    Case(
        "sort_middle",
        lambda i, x, y: lax.sort((i, x, y), dimension=1, num_keys=1)[1:],
        (integers(2, 3, 2, high=9), array(2, 3, 2), array(2, 3, 2, seed=1)),
    ),
    Case("sort_empty", lambda x: lax.sort(x[:0]), (V,)),
    Case("sort_one", lambda x: lax.sort(x[:1]) * 2, (V,)),
    Case(
        "sort_special",
        lambda x: lax.sort(x) * np.arange(1.0, 6.0, dtype=np.float32),
        (np.array([np.inf, 0.0, -np.inf, 1.0, -0.0], np.float32),),
    ),
]

# --- windows ---


def _window(fn, init, sizes, strides, padding, base=None, dilation=None):
    rank = len(sizes)
    base, dilation = base or (1,) * rank, dilation or (1,) * rank

    def run(x):
        start = np.asarray(init, x.dtype)
        return lax.reduce_window(x, start, fn, sizes, strides, padding, base, dilation)

    return run


def _pairs_text() -> str:
    """The largest of each window and its index, as a (value, index) fold."""
    T, J, N, W = "tensor<6xf32>", "tensor<6xi32>", "tensor<i32>", "tensor<4xf32>"
    return main(
        f"%x: {T}",
        f"""%n = stablehlo.iota dim = 0 : {J}
  %low = stablehlo.constant dense<0xFF800000> : {S}
  %zero = stablehlo.constant dense<0> : {N}
  %y:2 = "stablehlo.reduce_window"(%x, %n, %low, %zero) ({{
  ^bb0(%a: {S}, %i: {N}, %b: {S}, %j: {N}):
    %p = stablehlo.compare GE, %a, %b : ({S}, {S}) -> tensor<i1>
    %v = stablehlo.select %p, %a, %b : tensor<i1>, {S}
    %k = stablehlo.select %p, %i, %j : tensor<i1>, {N}
    stablehlo.return %v, %k : {S}, {N}
  }}) {{window_dimensions = array<i64: 3>}}
    : ({T}, {J}, {S}, {N}) -> ({W}, tensor<4xi32>)""",
        ("%y#0", W),
        ("%y#1", "tensor<4xi32>"),
    )


def _pairs(x):
    windows = jnp.stack([x[i : i + 3] for i in range(4)])
    index = windows.argmax(1) + np.arange(4)
    return windows.max(1), index.astype(np.int32)


def _pool_gradient(sizes, strides, padding, fn=lax.max, init=-np.inf):
    """The derivative of a pool's derivative holds select_and_scatter."""
    import jax

    pool = _window(fn, init, sizes, strides, padding)
    return lambda x, g: jax.vjp(pool, x)[1](g)[0]


WINDOWS = [
    Case("window_pairs", _pairs, (V,), text=_pairs_text()),
    Case(
        "sum_pool_uneven",
        _window(lax.add, 0, (2, 3), (3, 1), ((0, 2), (2, 0))),
        (X,),
    ),
    Case(
        "sum_pool_base_and_window",
        _window(lax.add, 0, (3, 2), (2, 1), ((1, 1), (0, 2)), (3, 1), (1, 2)),
        (X,),
    ),
    Case(
        "max_pool_based",
        _window(lax.max, -np.inf, (2, 2), (1, 2), ((1, 0), (0, 1)), (2, 1)),
        (X,),
    ),
    Case("sum_pool_no_window", _window(lax.add, 0, (9,), (1,), ((0, 0),)), (V,)),
    Case("max_pool_empty", _window(lax.max, -np.inf, (2,), (1,), ((0, 0),)), (V[:0],)),
    Case("cumsum_one", lambda x: lax.cumsum(x[:1]), (V,)),
    Case("cumprod_zeros", lambda x: lax.cumprod(x, 1), (ZEROS,)),
    Case(
        "select_overlapping",
        _pool_gradient((3, 3), (1, 2), ((1, 1), (0, 1))),
        (X, array(4, 2)),
    ),
    Case(
        "select_minimum",
        _pool_gradient((2, 2), (2, 2), ((0, 0), (0, 1)), lax.min, np.inf),
        (X, array(2, 3)),
    ),
    Case("select_gaps", _pool_gradient((2,), (3,), ((0, 0),)), (array(9), array(3))),
]

# --- gathers ---


def _gather(offset, collapsed, start_map, sizes, batching=((), ()), mode="clip"):
    numbers = lax.GatherDimensionNumbers(
        offset_dims=offset,
        collapsed_slice_dims=collapsed,
        start_index_map=start_map,
        operand_batching_dims=batching[0],
        start_indices_batching_dims=batching[1],
    )
    return lambda x, i: lax.gather(x, i, numbers, sizes, mode=mode)


CUBE = array(3, 4, 5)
FAR = np.array([[-7, 2], [1, 99], [3, 4], [-1, -1]], np.int32)
GATHERS = [
    Case("gather_outside", _gather((), (0, 1), (0, 1), (1, 1)), (X, FAR)),
    Case("gather_window_outside", _gather((1, 2), (), (0, 1), (2, 3)), (X, FAR)),
    Case(
        "gather_batched_window",
        _gather((2, 3), (), (1,), (1, 2, 5), ((0,), (0,))),
        (CUBE, integers(3, 2, 1, high=3)),
    ),
    Case(
        "gather_offset_first",
        _gather((0, 1), (1,), (1,), (3, 1, 5)),
        (CUBE, integers(2, 1, high=4)),
    ),
    Case(
        "gather_fill",
        lambda x, i: x.at[i].get(mode="fill", fill_value=0.0),
        (X, np.array([2, 9, -9], np.int32)),
    ),
    Case("gather_none", lambda x: x[np.zeros(0, np.int32)], (X,)),
    Case("gather_same", lambda x, i: x[i] * x[i] + x[:3], (X, FAR[:3, 1] % 4)),
]

# --- aliases, singletons, empties ---


def _same(op):
    return lambda x: op(x, x)


P = abs(X) + np.float32(0.5)
ALIASES = [
    *(
        Case(f"same_{name}", _same(op), (P,))
        for name, op in {
            "add": lax.add,
            "atan2": lax.atan2,
            "divide": lax.div,
            "maximum": lax.max,
            "multiply": lax.mul,
            "power": lax.pow,
            "subtract": lax.sub,
        }.items()
    ),
    Case("same_dot", lambda x: x @ x, (array(4, 4),)),
    Case("same_dot_transposed", lambda x: x @ x.T, (X,)),
    Case("same_select", lambda x: jnp.where(x > 0, x, x), (X,)),
    Case("same_clamp", lambda x: lax.clamp(x, x, x), (V,)),
    Case("same_pad", lambda x: lax.pad(x, x[0], ((1, 1, 1),)), (V,)),
    Case(
        "same_update",
        lambda x: lax.dynamic_update_slice(x, x[:2], (np.int32(3),)),
        (V,),
    ),
    Case("same_scatter", lambda x: x.at[np.array([1, 1])].add(x[:2]), (V,)),
    Case("same_concatenate", lambda x: jnp.concatenate([x, x, x]), (V,)),
    Case("one_by_one", lambda x, y: x * y, (array(1, 1), X)),
    Case("one_row", lambda x, y: jnp.maximum(x, y), (array(1, 5), X)),
    Case("empty_free_dot", lambda x, y: x[:0] @ y.T, (X, X)),
    Case(
        "empty_max",
        lambda x: lax.reduce(x[:0], -np.float32(np.inf), lax.max, (1,)),
        (X,),
    ),
    Case("empty_concatenate", lambda x: jnp.concatenate([x[:0], x[:0]]), (V,)),
    Case("empty_gather", lambda x: x[:0][:, np.array([1, 1])], (X,)),
    Case("scalar_chain", lambda x: jnp.tanh(x) * x, (np.float32(0.3),)),
]

# --- points where formulas meet poles and ties ---

POINTS = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf], np.float32)
SPECIAL = [
    Case(f"special_{name}", fn, (POINTS,))
    for name, fn in {
        "abs": lax.abs,
        "cosine": lax.cos,
        "exponential": lax.exp,
        "floor": lax.floor,
        "negate": lax.neg,
        "relu": lambda x: jnp.maximum(x, 0.0),
        "clip": lambda x: jnp.clip(x, -1.0, 1.0),
        "sign": lax.sign,
        "square": lambda x: x * x,
        "sum": lambda x: jnp.where(jnp.isfinite(x), x, 0.0).sum(),
    }.items()
]
LOGISTIC = main(
    "%x: tensor<6xf32>",
    "%y = stablehlo.logistic %x : tensor<6xf32>",
    ("%y", "tensor<6xf32>"),
)
SPECIAL += [Case("special_logistic", lax.logistic, (POINTS,), text=LOGISTIC)]
NAN = np.array([1.0, np.nan, 3.0], np.float32)
NANS = [
    Case("nan_add", lambda x: x + 1, (NAN,)),
    Case("nan_multiply", lambda x: x * x, (NAN,)),
    Case("nan_select", lambda x: jnp.where(jnp.isnan(x), 0.0, x), (NAN,)),
    Case("nan_elsewhere", lambda x: x[0] * x[2], (NAN,)),
    Case("nan_max", lambda x: x.max(), (NAN,)),
    Case("nan_min", lambda x: x.min(), (NAN,)),
    Case("nan_maximum", lambda x: jnp.maximum(x, x[::-1]), (NAN,)),
]
CASES = [
    *INITIAL,
    *PRODUCTS,
    *SORTS,
    *WINDOWS,
    *GATHERS,
    *ALIASES,
    *SPECIAL,
    *NANS,
]
