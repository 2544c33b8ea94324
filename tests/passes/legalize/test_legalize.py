"""pcp-legalize against JAX: IREE runs the legalised program, out of range too."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.servers.iree_server import Iree
from jax import lax

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.errors import PassError, PcpError
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
    "mul": lax.scatter_mul,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
}


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        *((case, "add") for case in SCATTERS),
        *((case, kind) for case in ("rows", "one_window") for kind in KINDS),
    ],
)
def test_scatter(iree: Iree, case: str, kind: str) -> None:
    dims, operand, indices, updates = SCATTERS[case]

    def scatter(x, i, u):
        return {**KINDS, "add": lax.scatter_add}[kind](x, i, u, dims, mode=DROP)

    _agrees(iree, scatter, operand, indices, updates)


def _agrees(iree: Iree, function: Callable, *arguments: np.ndarray) -> None:
    jitted = jax.jit(function, keep_unused=True)
    want = jax.tree.leaves(jitted(*arguments))
    got = iree.run(legalized(jitted.lower(*arguments).as_text()), arguments)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


SET_INDICES = np.array([[3], [-1], [0], [7], [2]], np.int32)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.bool_])
def test_scatter_set_drops_what_is_outside(iree: Iree, dtype: type) -> None:
    """The valid indices are distinct: which of two equal ones wins is open."""

    def put(x, i, u):
        return lax.scatter(x, i, u, ROWS, mode=DROP)

    _agrees(
        iree,
        put,
        (floats(5, 3) > 0).astype(dtype),
        SET_INDICES,
        (floats(5, 3, seed=1) > 0).astype(dtype),
    )


def test_scatter_set_promised_unique(iree: Iree) -> None:
    def put(x, i, u):
        return x.at[i].set(u, unique_indices=True, mode="promise_in_bounds")

    indices = np.array([3, 1, 0], np.int32)
    _agrees(iree, put, floats(5, 3), indices, floats(3, 3, seed=1))


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

    _agrees(iree, shifted, floats(6))


def test_a_stable_sort_keeps_the_order_of_equals(iree: Iree) -> None:
    def sort(keys, values):
        return lax.sort((keys, values), dimension=0, num_keys=1, is_stable=True)

    keys = np.random.default_rng(0).integers(0, 3, (40, 2)).astype(np.int32)
    _agrees(iree, sort, keys, np.arange(80, dtype=np.int32).reshape(40, 2))
    _agrees(iree, lambda x: jnp.argsort(x, axis=1), keys.T.copy())
    batch = np.stack([keys.T, keys[::-1].T])
    _agrees(iree, jax.vmap(jax.vmap(jnp.argsort)), batch)
    signed = np.array([0.0, -0.0, 0.0, -0.0, 1.0, -0.0, -1.0], np.float32)
    _agrees(iree, sort, signed, np.arange(7, dtype=np.int32))


def test_positions_that_are_sorted_are_still_in_order_elsewhere(iree: Iree) -> None:
    """IREE has one buffer for equal iotas, and sorts in it."""

    def places(keys):
        i = lax.iota(jnp.int32, len(keys))
        order, back = (lax.sort((k, i), num_keys=1)[1] for k in (keys, -keys))
        return order, i, back

    keys = np.random.default_rng(0).permutation(48).astype(np.int32)
    _agrees(iree, places, keys)


POINTS = [0.0, 1.0, 2.0, 3.0, 0.5, 2.5, 7.0, np.inf]
FUNCTIONS = {"power": lax.pow, "atan2": lax.atan2, "cbrt": lambda x, _: lax.cbrt(x)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_at_their_special_points(iree: Iree, name: str) -> None:
    """Both signs of each, and NaN, with each other."""
    points = np.array([*POINTS, *(-p for p in POINTS), np.nan], np.float32)
    left, right = (m.reshape(-1) for m in np.meshgrid(points, points))
    jitted = jax.jit(FUNCTIONS[name], keep_unused=True)
    want = np.asarray(jitted(left, right))
    text = legalized(jitted.lower(left, right).as_text())
    (got,) = iree.run(text, (left, right))
    np.testing.assert_allclose(got, want, rtol=3e-6)
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


EXPONENTS = [-33, -3, -2.5, -2, -1, -0.5, 0, 1 / 3, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 10]


def test_powers_with_constant_exponents(iree: Iree) -> None:
    """Negative bases, both zeros and both infinities; 1e30 overflows on the way."""
    exponents = [*EXPONENTS, 16, 33, 1e30, np.inf, -np.inf, np.nan]
    points = [*POINTS, 1e-3, 1e30]
    x = np.array([*points, *(-p for p in points), np.nan], np.float32)

    def powers(x):
        return jnp.stack([lax.pow(x, jnp.full_like(x, y)) for y in exponents])

    jitted = jax.jit(powers)
    want = np.asarray(jitted(x))
    (got,) = iree.run(legalized(jitted.lower(x).as_text()), [x])
    np.testing.assert_allclose(got, want, rtol=3e-6)
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


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


@pytest.mark.parametrize("case", GATHERS)
def test_gather(iree: Iree, case: str) -> None:
    function, arguments = GATHERS[case]
    _agrees(iree, function, *arguments)


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


@pytest.mark.parametrize("case", POOLS)
def test_select_and_scatter(iree: Iree, case: str) -> None:
    window, strides, padding = POOLS[case]

    def pool(x):
        return lax.reduce_window(x, -np.inf, lax.max, window, strides, padding)

    def pullback(x, g):
        return jax.vjp(pool, x)[1](g)[0]

    x = floats(6, 6)
    _agrees(iree, pullback, x, floats(*pool(x).shape, seed=1))


def test_ties_in_a_window_go_to_the_first(iree: Iree) -> None:
    def pool(x):
        return lax.reduce_window(x, -np.inf, lax.max, (3,), (1,), "VALID")

    x, g = np.ones(5, np.float32), np.array([1, 2, 4], np.float32)
    _agrees(iree, lambda x, g: jax.vjp(pool, x)[1](g)[0], x, g)


NORMS = {
    "inference": (
        "batch_norm_inference",
        "%x, %s, %o, %m, %v",
        "tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>",
        ["tensor<4x3xf32>"],
    ),
    "training": (
        "batch_norm_training",
        "%x, %s, %o",
        "tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>",
        ["tensor<4x3xf32>", "tensor<3xf32>", "tensor<3xf32>"],
    ),
    "gradient": (
        "batch_norm_grad",
        "%x, %s, %m, %v, %g",
        "tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4x3xf32>",
        ["tensor<4x3xf32>", "tensor<3xf32>", "tensor<3xf32>"],
    ),
}
EPSILON = 0.01


def _norm(x, s, o):
    mean = x.mean(0)
    variance = ((x - mean) ** 2).mean(0)
    unit = (x - mean) / jnp.sqrt(variance + EPSILON)
    return unit * s + o, mean, variance


@pytest.mark.parametrize("case", NORMS)
def test_batch_norm(iree: Iree, case: str) -> None:
    name, operands, types, results = NORMS[case]
    x, s, o = floats(4, 3), floats(3, seed=1), floats(3, seed=2)
    g, m, v = floats(4, 3, seed=3), floats(3, seed=4), abs(floats(3, seed=5))
    if case == "inference":
        want = [(x - m) / np.sqrt(v + EPSILON) * s + o]
    elif case == "training":
        want = list(_norm(x, s, o))
    else:
        m, v = x.mean(0), x.var(0)
        want = jax.vjp(lambda *a: _norm(*a)[0], x, s, o)[1](g)
    listed = ", ".join(results)
    text = f"""
func.func @main(%x: tensor<4x3xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>,
    %m: tensor<3xf32>, %v: tensor<3xf32>, %g: tensor<4x3xf32>) -> ({listed}) {{
  %0:{len(results)} = "stablehlo.{name}"({operands}) <{{
    epsilon = {EPSILON} : f32, feature_index = 1 : i64}}>
    : ({types}) -> ({listed})
  return {", ".join(f"%0#{i}" for i in range(len(results)))} : {listed}
}}"""
    got = iree.run(legalized(text), (x, s, o, m, v, g))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_ops_in_the_body_of_what_is_replaced(iree: Iree) -> None:
    text = """
func.func @main(%x: tensor<3xf32>, %y: tensor<3xf32>) -> tensor<3xf32> {
  %0 = "stablehlo.map"(%x, %y) <{dimensions = array<i64: 0>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %n = stablehlo.power %a, %b : tensor<f32>
    %m = stablehlo.atan2 %n, %b : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}"""
    x, y = np.array([-2, 0, 3], np.float32), np.array([3, -0.0, -1], np.float32)
    (got,) = iree.run(legalized(text), (x, y))
    np.testing.assert_allclose(got, np.arctan2(x**y, y), rtol=1e-6)


def test_chlo_is_gone() -> None:
    module = parse("""
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = chlo.erf %x : tensor<3xf32> -> tensor<3xf32>
  return %0 : tensor<3xf32>
}""")
    Legalize().run(module)
    assert not any(op.name.startswith("chlo") for op in operations(module))


def test_what_iree_cannot_do_is_located() -> None:
    module = parse("""
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.custom_call @f(%x) : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}""")
    with pytest.raises(PassError, match=r"3:8: stablehlo.custom_call: IREE cannot"):
        Legalize().run(module)


@pytest.mark.parametrize(
    "run", [Legalize().run, pipeline("builtin.module(pcp-vjp)").run]
)
def test_linear_algebra_for_another_machine_names_the_way_out(run: Any) -> None:
    """As JAX's own lowering has it, in a file."""
    lowered = jax.jit(lambda a: jnp.linalg.qr(a)[1]).lower(jnp.ones((3, 3)))
    module = parse(lowered.as_text())
    with pytest.raises(PcpError, match=r"custom_call.*export .* with pcp.from_jax"):
        run(module)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_all_elements_with_rows_or_columns(
    dtype: Any, axis: int, iree: Iree
) -> None:
    """IREE takes the first for a contraction to a scalar, and fails."""
    spread, x = floats(*((4, 1), (1, 7))[axis]), floats(4, 7, seed=1)
    given = [spread.astype(dtype).ravel(), x.astype(dtype)]

    def both(w: jax.Array, x: jax.Array) -> list[jax.Array]:
        w = w.reshape(spread.shape)
        return [jnp.sum(w * x), jnp.sum((w + x) ** 2)]

    text = legalized(jax.jit(both).lower(*given).as_text())
    wide = [np.asarray(g, np.float64) for g in given]
    found = iree.run(text, given)
    for result, right in zip(found, both(*map(jnp.asarray, wide)), strict=True):
        tolerance = 1e-5 if dtype is np.float32 else 0.02
        np.testing.assert_allclose(
            np.asarray(result, np.float32), right, rtol=tolerance, atol=tolerance
        )
