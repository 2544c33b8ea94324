"""Scatters, gathers and pools as pcp-legalize leaves them, against JAX, through IREE.

Indices lie outside too: what is written there is dropped, what is read is clamped.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.oracles.together import Together, agrees
from helpers.servers.iree_server import Iree
from jax import lax

from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.legalize.legalize import Legalize

WILD = np.array([0, 3, -1, 9, 4, 2, -7, 100], np.int32)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def numbers(**fields: tuple[int, ...]) -> lax.ScatterDimensionNumbers:
    """Dimension numbers by name."""
    return lax.ScatterDimensionNumbers(**fields)


ROWS = numbers(
    update_window_dims=(1,),
    inserted_window_dims=(0,),
    scatter_dims_to_operand_dims=(0,),
)
# A window of 2 of 4 columns, at (row, column).
PARTIAL = numbers(
    update_window_dims=(1,),
    inserted_window_dims=(0,),
    scatter_dims_to_operand_dims=(0, 1),
)
# Indexed dims 0 and 2 of three.
APART = numbers(
    update_window_dims=(1,),
    inserted_window_dims=(0, 2),
    scatter_dims_to_operand_dims=(2, 0),
)
BATCHED = numbers(
    update_window_dims=(2,),
    inserted_window_dims=(1,),
    scatter_dims_to_operand_dims=(1,),
    operand_batching_dims=(0,),
    scatter_indices_batching_dims=(0,),
)
# The window is a row of the transposed order: window dims come first.
WINDOW_FIRST = numbers(
    update_window_dims=(0,),
    inserted_window_dims=(0,),
    scatter_dims_to_operand_dims=(0,),
)
PAIRS = np.array([[0, 1], [4, 2], [2, 3], [-1, 0], [5, 0], [1, 1]], np.int32)
SWAPPED = np.array([[0, 4], [2, 1], [3, 0], [1, 5], [-2, 2]], np.int32)

DROP = lax.GatherScatterMode.FILL_OR_DROP
SCATTERS: dict[str, tuple] = {
    "rows": (ROWS, floats(5, 3), WILD[:, None], floats(8, 3, seed=1)),
    "partial": (PARTIAL, floats(5, 4), PAIRS, floats(6, 2, seed=1)),
    "apart": (APART, floats(5, 3, 4), SWAPPED, floats(5, 3, seed=1)),
    "batched": (
        BATCHED,
        floats(2, 5, 3),
        WILD.reshape(2, 4, 1),
        floats(2, 4, 3, seed=1),
    ),
    "window_first": (WINDOW_FIRST, floats(5, 3), WILD[:, None], floats(3, 8, seed=1)),
    "one_window": (PARTIAL, floats(5, 4), PAIRS[2:3], floats(1, 2, seed=1)),
    "one_window_in": (PARTIAL, floats(5, 4), PAIRS[1:2], floats(1, 2, seed=1)),
    "no_windows": (ROWS, floats(5, 3), WILD[:0, None], floats(0, 3, seed=1)),
    "bytes": (ROWS, floats(300, 3), WILD[:, None].astype(np.int8), floats(8, 3)),
}
KINDS: dict[str, Callable] = {
    "add": lax.scatter_add,
    "mul": lax.scatter_mul,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
}


CASES = [
    *((case, "add") for case in SCATTERS),
    *((case, kind) for case in ("rows", "one_window") for kind in list(KINDS)[1:]),
]


def _scatter(kind: Callable, dims: lax.ScatterDimensionNumbers) -> Callable:
    return lambda x, i, u: kind(x, i, u, dims, mode=DROP)


SCATTERED = Together(
    {
        f"{case} {kind}": (_scatter(KINDS[kind], SCATTERS[case][0]), SCATTERS[case][1:])
        for case, kind in CASES
    }
)


@pytest.mark.parametrize(("case", "kind"), CASES)
def test_scatter(iree: Iree, case: str, kind: str) -> None:
    SCATTERED.check(iree, f"{case} {kind}")


SET_INDICES = np.array([[3], [-1], [0], [7], [2]], np.int32)
SET_TYPES = (np.float32, np.int32, np.int8, np.bool_)
SET = Together(
    {
        dtype.__name__: (
            _scatter(lax.scatter, ROWS),
            (
                (floats(5, 3) > 0).astype(dtype),
                SET_INDICES,
                (floats(5, 3, seed=1) > 0).astype(dtype),
            ),
        )
        for dtype in SET_TYPES
    }
)


@pytest.mark.slow  # test_scatter has such indices
@pytest.mark.parametrize("dtype", SET_TYPES)
def test_scatter_set_drops_what_is_outside(iree: Iree, dtype: type) -> None:
    """The valid indices are distinct: which of two equal ones wins is open."""
    SET.check(iree, dtype.__name__)


def test_scatter_set_promised_unique(iree: Iree) -> None:
    def put(x, i, u):
        return x.at[i].set(u, unique_indices=True, mode="promise_in_bounds")

    indices = np.array([3, 1, 0], np.int32)
    agrees(iree, put, floats(5, 3), indices, floats(3, 3, seed=1))


def test_sum_keeps_negative_zero(iree: Iree) -> None:
    """A dropped update leaves every bit of the row it was clamped to."""

    def scatter(x, i, u):
        return lax.scatter_add(x, i, u, ROWS, mode=DROP)

    operand = np.full((2, 3), -0.0, np.float32)
    indices = np.array([[7], [-1]], np.int32)
    text = jax.jit(scatter).lower(operand, indices, floats(2, 3)).as_text()
    (got,) = iree.run(legalized(text), (operand, indices, floats(2, 3)))
    assert np.signbit(got).all()


VARIADIC = """
func.func @main(%a: tensor<4xf32>, %b: tensor<4xi32>, %i: tensor<3x1xi32>,
                %u: tensor<3xf32>, %v: tensor<3xi32>)
    -> (tensor<4xf32>, tensor<4xi32>) {
  %0:2 = "stablehlo.scatter"(%a, %b, %i, %u, %v) <{
    scatter_dimension_numbers = #stablehlo.scatter<
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
      index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %n: tensor<i32>, %y: tensor<f32>, %m: tensor<i32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    %t = stablehlo.maximum %n, BODY : tensor<i32>
    stablehlo.return %s, %t : tensor<f32>, tensor<i32>
  }) : (tensor<4xf32>, tensor<4xi32>, tensor<3x1xi32>, tensor<3xf32>, tensor<3xi32>)
    -> (tensor<4xf32>, tensor<4xi32>)
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xi32>
}"""


def test_variadic_scatter_is_split(iree: Iree) -> None:
    a, b = np.zeros(4, np.float32), np.array([5, -5, 5, -5], np.int32)
    i = np.array([[1], [9], [1]], np.int32)
    u, v = np.array([1, 2, 4], np.float32), np.array([3, 9, 4], np.int32)
    got = iree.run(legalized(VARIADIC.replace("BODY", "%m")), (a, b, i, u, v))
    np.testing.assert_array_equal(got[0], [0, 5, 0, 0])
    np.testing.assert_array_equal(got[1], [5, 4, 5, -5])


def test_entangled_variadic_scatter_goes_window_by_window(iree: Iree) -> None:
    """Which element wins decides both results, as in an argmax."""
    text = VARIADIC.replace("%t = stablehlo.maximum %n, BODY", MIXED)
    text = text.replace("return %s, %t", "return %best, %t")
    a, b = np.array([0, 2, 0, 5], np.float32), np.array([-1, -1, -1, -1], np.int32)
    i = np.array([[1], [9], [1], [-3], [0]], np.int32)
    u, v = np.array([1, 9, 4, 9, 3], np.float32), np.arange(5, dtype=np.int32)
    got = iree.run(legalized(text.replace("<3", "<5")), (a, b, i, u, v))
    np.testing.assert_array_equal(got[0], [3, 4, 0, 5])
    np.testing.assert_array_equal(got[1], [4, 2, -1, -1])


MIXED = """%p = stablehlo.compare GT, %x, %y
      : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %best = stablehlo.select %p, %x, %y : tensor<i1>, tensor<f32>
    %t = stablehlo.select %p, %n, %m : tensor<i1>, tensor<i32> //"""


@pytest.mark.parametrize("views", ["slice", "slice of a sum"])
def test_scatter_of_a_part_of_its_operand(iree: Iree, views: str) -> None:
    """IREE would read what it has just written."""

    def shifted(x):
        x = x + 1 if views != "slice" else x
        return x.at[jnp.array([1, 1])].add(x[:2])

    agrees(iree, shifted, floats(6))


GATHERS: dict[str, tuple[Callable, tuple[np.ndarray, ...]]] = {
    "rows": (
        lambda x, i: x.at[i].get(mode="clip"),
        (floats(5, 3), WILD),
    ),
    "pairs": (
        lambda x, i: x.at[i[:, 0], i[:, 1]].get(mode="clip"),
        (floats(5, 4), PAIRS * 3 - 4),
    ),
    "unsigned_bytes": (
        lambda x, i: x.at[i].get(mode="clip"),
        (floats(5, 3), np.array([0, 255, 4], np.uint8)),
    ),
    "batched": (
        jax.vmap(lambda x, i: x.at[i].get(mode="clip")),
        (floats(2, 5, 3), WILD.reshape(2, 4)),
    ),
    "slices": (
        lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 2)),
        (floats(5, 4), np.array([9, -3], np.int32)),
    ),
    "update_slice": (
        lambda x, i: lax.dynamic_update_slice(x, x[:2, :2] * 2, (i[0], i[1])),
        (floats(5, 4), np.array([9, -3], np.int32)),
    ),
}


GATHERED = Together(GATHERS)


@pytest.mark.parametrize("case", GATHERS)
def test_gather(iree: Iree, case: str) -> None:
    GATHERED.check(iree, case)


GATHER = """
func.func @main(%x: tensor<5x3xf32>, %i: tensor<4x1xTYPE>) -> tensor<4x3xf32> {{
  {indices}
  %0 = "stablehlo.gather"(%x, %j) <{{dimension_numbers = #stablehlo.gather<
    offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
    index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}}>
    : (tensor<5x3xf32>, tensor<4x1xTYPE>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}}"""
TENSOR = "tensor<4x1xi32>"
INDICES = {
    "data": ("%j = stablehlo.negate %i : tensor<4x1xi32>", True),
    "iota": ("%j = stablehlo.iota dim = 0 : tensor<4x1xi32>", False),
    "constant": ("%j = stablehlo.constant dense<[[0], [4], [2], [1]]> : T", False),
    "constant_outside": ("%j = stablehlo.constant dense<5> : T", True),
    "sum": (
        "%k = stablehlo.iota dim = 0 : T %c = stablehlo.constant dense<1> : T "
        "%j = stablehlo.add %k, %c : T",
        False,
    ),
    "sum_outside": (
        "%k = stablehlo.iota dim = 0 : T %c = stablehlo.constant dense<2> : T "
        "%j = stablehlo.add %k, %c : T",
        True,
    ),
    "masked": (
        "%c = stablehlo.constant dense<3> : T %j = stablehlo.and %i, %c : T",
        False,
    ),
    "remainder": (
        "%c = stablehlo.constant dense<5> : T %j = stablehlo.remainder %i, %c : T",
        True,
    ),
}


@pytest.mark.parametrize("case", INDICES)
def test_only_indices_that_may_be_outside_are_clamped(case: str) -> None:
    indices, clamped = INDICES[case]
    text = GATHER.format(indices=indices).replace(": T", f": {TENSOR}")
    module = parse(text.replace("TYPE", "i32"))
    Legalize().run(module)
    names = [op.name for op in operations(module)]
    assert ("stablehlo.clamp" in names) is clamped


POOLS = {
    "overlap": ((3, 3), (1, 1), "VALID"),
    "padded": ((3, 3), (2, 2), "SAME"),
    "strided": ((2, 3), (1, 2), ((1, 0), (1, 1))),
    "tiles": ((2, 2), (2, 2), "VALID"),
}


def _pulled(case: str) -> tuple[Callable, tuple[np.ndarray, ...]]:
    window, strides, padding = POOLS[case]

    def pool(x):
        return lax.reduce_window(x, -np.inf, lax.max, window, strides, padding)

    def pullback(x, g):
        return jax.vjp(pool, x)[1](g)[0]

    x = floats(6, 6)
    return pullback, (x, floats(*jax.eval_shape(pool, x).shape, seed=1))


PULLED = Together({case: _pulled(case) for case in POOLS})


@pytest.mark.parametrize("case", POOLS)
def test_select_and_scatter(iree: Iree, case: str) -> None:
    PULLED.check(iree, case)


def test_ties_in_a_window_go_to_the_first(iree: Iree) -> None:
    def pool(x):
        return lax.reduce_window(x, -np.inf, lax.max, (3,), (1,), "VALID")

    x, g = np.ones(5, np.float32), np.array([1, 2, 4], np.float32)
    agrees(iree, lambda x, g: jax.vjp(pool, x)[1](g)[0], x, g)
