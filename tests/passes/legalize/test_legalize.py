"""pcp-legalize against JAX: IREE runs the legalised program, out of range too."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.oracles.together import Together, agrees
from helpers.sampled import sampled
from helpers.servers.iree_server import Iree
from jax import lax

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.errors import PassError, PcpError
from pcp.passes.core.rewriting import operations
from pcp.passes.legalize.legalize import Legalize


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _sort(keys, values):
    return lax.sort((keys, values), dimension=0, num_keys=1, is_stable=True)


KEYS = np.random.default_rng(0).integers(0, 3, (40, 2)).astype(np.int32)
ZEROS = np.array([0.0, -0.0, 0.0, -0.0, 1.0, -0.0, -1.0], np.float32)
SORTS = {
    "columns": (_sort, (KEYS, np.arange(80, dtype=np.int32).reshape(40, 2))),
    "rows": (lambda x: jnp.argsort(x, axis=1), (KEYS.T.copy(),)),
    "batch": (jax.vmap(jax.vmap(jnp.argsort)), (np.stack([KEYS.T, KEYS[::-1].T]),)),
    "signed zeros": (_sort, (ZEROS, np.arange(7, dtype=np.int32))),
}
SORTED = Together(SORTS)


@pytest.mark.parametrize("case", SORTS)
def test_a_stable_sort_keeps_the_order_of_equals(iree: Iree, case: str) -> None:
    SORTED.check(iree, case)


def test_positions_that_are_sorted_are_still_in_order_elsewhere(iree: Iree) -> None:
    """IREE has one buffer for equal iotas, and sorts in it."""

    def places(keys):
        i = lax.iota(jnp.int32, len(keys))
        order, back = (lax.sort((k, i), num_keys=1)[1] for k in (keys, -keys))
        return order, i, back

    keys = np.random.default_rng(0).permutation(48).astype(np.int32)
    agrees(iree, places, keys)


POINTS = [0.0, 1.0, 2.0, 3.0, 0.5, 2.5, 7.0, np.inf]
SIGNED = np.array([*POINTS, *(-p for p in POINTS), np.nan], np.float32)
#: Both signs of each, and NaN, with each other.
PAIRS = tuple(m.reshape(-1) for m in np.meshgrid(SIGNED, SIGNED))
FUNCTIONS = {"power": lax.pow, "atan2": lax.atan2, "cbrt": lambda x, _: lax.cbrt(x)}
POINTWISE = Together({name: (f, PAIRS) for name, f in FUNCTIONS.items()})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_at_their_special_points(iree: Iree, name: str) -> None:
    want = np.asarray(jax.jit(FUNCTIONS[name], keep_unused=True)(*PAIRS))
    (got,) = POINTWISE.results(iree, name)
    np.testing.assert_allclose(got, want, rtol=3e-6)
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


EXPONENTS = [-33, -3, -2.5, -2, -1, -0.5, 0, 1 / 3, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 10]


@pytest.mark.slow  # a loop of products for each of 23
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


@sampled("case", NORMS, 1)
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
        given = x, s, o
        want = jax.jit(lambda g: jax.vjp(lambda *a: _norm(*a)[0], *given)[1](g))(g)
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


@sampled("dtype", [np.float32, jnp.bfloat16], [np.float32])
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
