"""Derivative cases of data movement with static and with run-time positions."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.oracles.jax_gradients import Case, array, integers
from jax import lax

X = array(4, 5)
V = array(6)
CUBE = array(2, 3, 4)
ROWS = np.array([3, 0, 3, 1], np.int32)
OUTSIDE = np.array([-3, 9, 1, 4, 0], np.int32)


def _broadcast(shape, dims):
    return lambda x: lax.broadcast_in_dim(x, shape, dims)


def _pad(low, high, interior):
    config = list(zip(low, high, interior, strict=True))
    return lambda x, v: lax.pad(x, v, config)


def _barrier(x, y):
    a, b = lax.optimization_barrier((x * 2, y * 3))
    return a * b


MOVEMENT = [
    Case("broadcast_scalar", _broadcast((2, 3), ()), (np.float32(2),)),
    Case("broadcast_rows", _broadcast((4, 5, 7), (0, 1)), (X,)),
    Case("broadcast_columns", _broadcast((7, 4, 5), (1, 2)), (X,)),
    Case("broadcast_stretch", _broadcast((4, 5), (0, 1)), (array(1, 5),)),
    Case("broadcast_both", _broadcast((3, 4, 5), (0, 2)), (array(1, 5),)),
    Case("broadcast_same", _broadcast((1, 5), (0, 1)), (array(1, 5),)),
    Case(
        "broadcast_unsorted",
        lambda x: lax.broadcast_in_dim(x.T, (4, 2, 5), (0, 2)),
        (array(5, 4),),
        text="""
func.func @main(%x: tensor<5x4xf32>) -> tensor<4x2x5xf32> {
  %y = stablehlo.broadcast_in_dim %x, dims = [2, 0]
    : (tensor<5x4xf32>) -> tensor<4x2x5xf32>
  return %y : tensor<4x2x5xf32>
}""",
    ),
    Case("reshape", lambda x: x.reshape(2, 10), (X,)),
    Case("reshape_scalar", lambda x: x.reshape(()), (array(1, 1),)),
    Case("reshape_empty", lambda x: x.reshape(0, 7), (array(3, 0),)),
    Case("transpose", lambda x: x.T, (X,)),
    Case("transpose_cycle", lambda x: x.transpose(2, 0, 1), (CUBE,)),
    Case("transpose_other_cycle", lambda x: x.transpose(1, 2, 0), (CUBE,)),
    Case("slice", lambda x: lax.slice(x, (1, 0), (3, 4)), (X,)),
    Case("slice_strided", lambda x: lax.slice(x, (0, 1), (4, 5), (2, 3)), (X,)),
    Case("slice_short_stride", lambda x: lax.slice(x, (1,), (5,), (2,)), (V,)),
    Case("slice_empty", lambda x: lax.slice(x, (2,), (2,), (3,)), (V,)),
    Case("pad", _pad((1, 2), (0, 3), (0, 0)), (X, np.float32(1))),
    Case("pad_interior", _pad((1, 0), (0, 2), (2, 1)), (X, np.float32(1))),
    Case("pad_negative", _pad((-1, 2), (3, -2), (0, 0)), (X, np.float32(1))),
    Case("pad_all_signs", _pad((-2, 1), (-1, -3), (2, 1)), (X, np.float32(1))),
    Case("pad_empty", _pad((1,), (1,), (0,)), (V[:0], np.float32(1))),
    Case("pad_operand", _pad((2,), (-1,), (1,)), (V, np.float32(0)), wrt=(0,)),
    Case("concatenate", lambda x, y: lax.concatenate([x, y, x], 1), (X, array(4, 2))),
    Case("concatenate_rows", lambda x: lax.concatenate([x, x * 2], 0), (X,)),
    Case("concatenate_empty", lambda x: lax.concatenate([x[:0], x], 0), (X,)),
    Case("concatenate_constant", lambda x: jnp.append(x, jnp.ones(3)), (V,)),
    Case("reverse", lambda x: lax.rev(x, (0,)), (X,)),
    Case("reverse_all", lambda x: lax.rev(x, (0, 1, 2)), (CUBE,)),
    Case("reverse_nothing", lambda x: lax.rev(x, ()), (X,)),
    Case("barrier", _barrier, (X, X + 1)),
    Case("barrier_one_live", lambda x, y: lax.optimization_barrier((x, y))[0], (X, X)),
    Case("barrier_integer", lambda i, x: _barrier(i, x), (integers(4, 5), X)),
    Case("iota", lambda x: x * lax.iota(jnp.float32, 6), (V,)),
    Case("constant", lambda x: x * np.arange(6, dtype=np.float32), (V,)),
]


def _gather(offset, collapsed, start_map, sizes, operand_batching=(), batching=()):
    numbers = lax.GatherDimensionNumbers(
        offset_dims=offset,
        collapsed_slice_dims=collapsed,
        start_index_map=start_map,
        operand_batching_dims=operand_batching,
        start_indices_batching_dims=batching,
    )
    return lambda x, i: lax.gather(x, i, numbers, sizes, mode="clip")


def _scatter(kind, window, inserted, to_operand, *, unique=False, mode="drop"):
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=window,
        inserted_window_dims=inserted,
        scatter_dims_to_operand_dims=to_operand,
    )
    run = getattr(lax, kind)

    def fn(x, i, u):
        return run(x, i, u, numbers, unique_indices=unique, mode=mode)

    return fn


PAIRS = integers(3, 2, high=4)
GATHER = [
    Case("gather_rows", lambda x, i: x[i], (X, ROWS)),
    Case("gather_columns", lambda x, i: x[:, i], (X, ROWS)),
    Case(
        "gather_rows_outside", _gather((1,), (0,), (0,), (1, 5)), (X, OUTSIDE[:, None])
    ),
    Case("gather_elements", _gather((), (0, 1), (0, 1), (1, 1)), (X, PAIRS)),
    Case("gather_swapped_map", _gather((), (0, 1), (1, 0), (1, 1)), (X, PAIRS)),
    Case("gather_window", _gather((0, 1), (), (0, 1), (2, 3)), (X, PAIRS[0])),
    Case("gather_windows", _gather((1, 2), (), (0, 1), (2, 3)), (X, PAIRS)),
    Case("gather_partial", _gather((1,), (0,), (0, 1), (1, 3)), (X, PAIRS)),
    Case(
        "gather_batched",
        _gather((1,), (), (1,), (1, 2), (0,), (0,)),
        (X, integers(4, 1, high=5)),
    ),
    Case(
        "gather_take_along",
        lambda x, i: jnp.take_along_axis(x, i, 1),
        (X, integers(4, 2)),
    ),
    Case("gather_constant", lambda x: x[np.array([0, 2, 2])], (X,)),
    Case("gather_wrapped", lambda x: x[jnp.array([-1, -4])], (X,)),
    Case("gather_token_ids", lambda x, i: x[i], (X, integers(2, 3))),
    Case("gather_integer_operand", lambda i, x, k: x * i[k], (ROWS, V[:4], ROWS)),
]
SCATTER = [
    Case(
        "scatter_set_unique",
        _scatter("scatter", (1,), (0,), (0,), unique=True),
        (X, np.array([[2], [0]]), array(2, 5)),
    ),
    Case(
        "scatter_set",
        lambda x, i, u: x.at[i].set(u),
        (X, np.array([2, 0]), array(2, 5)),
    ),
    Case(
        "scatter_set_elements",
        lambda x, i, u: x.at[i, i].set(u),
        (X, np.array([2, 0]), array(2)),
    ),
    Case("scatter_set_scalar", lambda x, u: x.at[1].set(u), (V, np.float32(3))),
    Case(
        "scatter_set_outside",
        _scatter("scatter", (1,), (0,), (0,)),
        (X, OUTSIDE[:2, None], array(2, 5)),
    ),
    Case("scatter_set_operand", lambda x, i: x.at[i].set(0.0), (X, ROWS)),
    Case("scatter_add", lambda x, i, u: x.at[i].add(u), (X, ROWS, array(4, 5))),
    Case(
        "scatter_add_outside",
        _scatter("scatter_add", (1,), (0,), (0,)),
        (X, OUTSIDE[:, None], array(5, 5)),
    ),
    Case(
        "scatter_add_window",
        _scatter("scatter_add", (0, 1), (), (0, 1)),
        (X, np.array([1, 2]), array(2, 2)),
    ),
    Case(
        "scatter_add_column", lambda x, i, u: x.at[:, i].add(u), (X, ROWS, array(4, 4))
    ),
    Case(
        "scatter_subtract", lambda x, i, u: x.at[i].subtract(u), (X, ROWS, array(4, 5))
    ),
    Case(
        "scatter_multiply",
        _scatter("scatter_mul", (1,), (0,), (0,), unique=True),
        (X, np.array([[2], [0]]), array(2, 5)),
    ),
    Case(
        "scatter_multiply_outside",
        _scatter("scatter_mul", (1,), (0,), (0,), unique=True),
        (X, np.array([[9], [0]]), array(2, 5)),
    ),
    Case("scatter_max", lambda x, i, u: x.at[i].max(u), (X, ROWS, array(4, 5))),
    Case("scatter_min", lambda x, i, u: x.at[i].min(u), (X, ROWS, array(4, 5))),
    Case("scatter_max_ties", lambda x, i, u: x.at[i].max(u), (V, ROWS, V[ROWS])),
    Case("segment_sum", lambda u, i: jax.ops.segment_sum(u, i, 5), (X, ROWS)),
]
#: jax leaves the winner among duplicates open and refuses nothing; ours is the
#: derivative of what the interpreter wrote, so the values must be equal there.
STARTS = (np.int32(1), np.int32(2))
DYNAMIC = [
    Case(
        "dynamic_slice",
        lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 3)),
        (X, *STARTS),
    ),
    Case(
        "dynamic_slice_outside",
        lambda x, i: lax.dynamic_slice(x, (i, i), (2, 3)),
        (X, np.int32(9)),
    ),
    Case(
        "dynamic_slice_negative",
        lambda x, i: lax.dynamic_slice(x, (i,), (2,)),
        (V, np.int32(-9)),
    ),
    Case(
        "dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)),
        (X, array(2, 2), np.int32(1)),
    ),
    Case(
        "dynamic_update_slice_outside",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)),
        (X, array(2, 2), np.int32(7)),
    ),
    Case(
        "dynamic_update_slice_update",
        lambda u, i: lax.dynamic_update_slice(jnp.ones(6), u, (i,)),
        (V[:2], np.int32(3)),
    ),
    Case("dynamic_index", lambda x, i: x[i] * x[0], (X, np.int32(2))),
]


def _sort_pairs(x, y):
    return lax.sort((x, y), dimension=0, num_keys=1)


SORT = [
    Case("sort", lambda x: lax.sort(x, dimension=0), (X,)),
    Case("sort_last", lambda x: lax.sort(x, dimension=1), (X,)),
    Case("sort_descending", lambda x: -jnp.sort(-x), (V,)),
    Case("sort_pairs", _sort_pairs, (X, X * X)),
    Case(
        "sort_key_value", lambda i, x: _sort_pairs(i, x)[1], (integers(6, high=99), V)
    ),
    Case("sort_ties", _sort_pairs, (np.array([1, 0, 1, 0], np.float32), V[:4])),
    Case("argsort", lambda x: x[jnp.argsort(x)] * jnp.arange(6.0), (V,)),
    Case("median", lambda x: jnp.median(x, axis=0), (X,)),
]
CASES = [*MOVEMENT, *GATHER, *SCATTER, *DYNAMIC, *SORT]
