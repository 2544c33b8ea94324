"""JAX's approx_max_k and approx_min_k: the exact ones, compiled, and differentiated."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pcp
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.ingest.import_ import Import

# Apart also as bf16 and f16, and more than one of the tiles that XLA reduces.
ROWS = np.random.default_rng(0).permutation(256)[: 2 * 120].reshape(2, 120) - 100.0
LONG = np.random.default_rng(1).permutation(1500).astype(np.float32)


def _pair(x: Any, k: int, **rest: Any) -> list[Any]:
    largest, smallest = lax.approx_max_k(x, k, **rest), lax.approx_min_k(x, k, **rest)
    return [*largest, *smallest]


VARIANTS: dict[str, Callable[[Any], list[Any]]] = {
    "last dimension": lambda x: _pair(x, 3),
    "first dimension": lambda x: _pair(x, 1, reduction_dimension=0),
    "bf16": lambda x: [r.astype("float32") for r in _pair(x.astype("bfloat16"), 3)],
    "f16": lambda x: _pair(x.astype("float16"), 2),
    "batched": lambda x: [*jax.vmap(lambda r: lax.approx_max_k(r, 2))(x)],
}


def _loss(x: Any, weights: Any) -> Any:
    values, places = lax.approx_min_k(x, 3)
    return jnp.sum(weights * values**2) + jnp.sum(places[0] * 1.0)


@pytest.mark.slow  # the best are found, below
@pytest.mark.parametrize(
    "target",
    # Slow: IREE is given the same loops for both.
    [pytest.param("cpu", marks=pytest.mark.slow), "cpu:host"],
)
def test_equals_jax(target: str) -> None:
    """All variants as one program, and the gradient of a loss, as JAX computes them."""
    x, weights = ROWS.astype(np.float32), np.arange(3, dtype=np.float32) + 1

    def every(x: Any) -> list[Any]:
        return [r for f in VARIANTS.values() for r in f(x)]

    bundle = pcp.compile(pcp.from_jax(every, x, params=()), target)
    with pcp.Program.load(bundle) as program:
        found = program["main"](x)
    for ours, theirs in zip(found, jax.jit(every)(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)

    bundle = pcp.compile(pcp.from_jax(_loss, x, weights), target, mode="grad")
    with pcp.Program.load(bundle) as program:
        value, gradient = program["grad"](x, weights)
    want, slope = jax.jit(jax.value_and_grad(_loss))(x, weights)
    np.testing.assert_allclose(value, want, rtol=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6)


@pytest.mark.parametrize("override", [-1, 60_000])
def test_without_aggregation_the_best_are_among_the_results(override: int) -> None:
    """More than k results, of no order; where the values end there is -inf at -1."""

    def best(x: Any) -> list[Any]:
        how = {"reduction_input_size_override": override}
        return [*lax.approx_max_k(x, 5, aggregate_to_topk=False, **how)]

    with pcp.Program.load(pcp.compile(pcp.from_jax(best, LONG, params=()))) as program:
        values, places = program["main"](LONG)
    shape = jax.eval_shape(best, LONG)[0].shape
    assert values.shape == places.shape == shape
    assert set(values) >= set(np.sort(LONG)[-5:])
    inside = places >= 0
    assert sum(inside) == min(shape[0], LONG.size)
    np.testing.assert_array_equal(LONG[places[inside]], values[inside])
    assert np.all(np.isneginf(values[~inside]))
    assert np.all(places[~inside] == -1)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("GT, %arg0, %arg1", "GE, %arg0, %arg1", "by more than GT or LT"),
        ("stablehlo.iota dim = 1", "stablehlo.iota dim = 0", "not the positions"),
        ("mhlo.backend_config", "other_config", "without mhlo.backend_config"),
    ],
)
def test_what_is_no_top_k_is_refused(old: str, new: str, why: str) -> None:
    """Another order, other second operands, and a call that does not say along what."""
    text = jax.jit(lambda x: lax.approx_max_k(x, 3)).lower(ROWS).as_text()
    assert old in text
    with pytest.raises(PassError, match=why):
        Import().run(parse(text.replace(old, new)))


def test_comparators_go() -> None:
    """One that several calls share goes once; a call of something else stays."""
    text = jax.jit(lambda x: _pair(x, 3) + _pair(x, 4)).lower(ROWS).as_text()
    module = parse(text)
    Import().run(module)
    assert [str(op.name) for op in module.body.operations] == ['"main"']
    assert str(module).count("chlo.top_k") == 4
