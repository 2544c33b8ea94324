"""pcp-spread-reductions gives what a reduction gives."""

import numpy as np
import pytest
from helpers.sampled import sampled
from helpers.servers.iree_server import Iree

from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.passes.core.base import verify
from pcp.passes.core.rewriting import operations
from pcp.passes.legalize.devices.spread_reductions import SpreadReductions

NEUTRAL = {"add": "0.0", "maximum": "0xFF800000", "minimum": "0x7F800000"}


def program(kind: str, shape: tuple[int, ...], dimension: int, init: str = "") -> str:
    x = f"tensor<{'x'.join(map(str, shape))}xf32>"
    left = "x".join(str(n) for i, n in enumerate(shape) if i != dimension)
    y = f"tensor<{left}xf32>"
    return f"""
func.func @main(%x: {x}) -> {y} {{
  %i = stablehlo.constant dense<{init or NEUTRAL[kind]}> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %i) applies stablehlo.{kind}
    across dimensions = [{dimension}] : ({x}, tensor<f32>) -> {y}
  return %0 : {y}
}}"""


COUNT = """
func.func @main(%b: tensor<300xi1>) -> tensor<i64> {
  %i = stablehlo.constant dense<0> : tensor<i64>
  %x = stablehlo.convert %b : (tensor<300xi1>) -> tensor<300xi64>
  %0 = stablehlo.reduce(%x init: %i) applies stablehlo.add
    across dimensions = [0] : (tensor<300xi64>, tensor<i64>) -> tensor<i64>
  return %0 : tensor<i64>
}"""


def spread(text: str) -> tuple[ir.Module, int]:
    """The module after the pass, and how many reductions it has."""
    module = parse(text)
    SpreadReductions().run(module)
    verify(module, "pcp-spread-reductions")
    names = [op.name for op in operations(module)]
    return module, names.count("stablehlo.reduce")


def _ran(iree: Iree, module: ir.Module, x: np.ndarray) -> list[np.ndarray]:
    (results,) = iree.run_all(str(module), {"main": [x]})
    assert not isinstance(results, str), results
    return results


@pytest.mark.parametrize("kind", NEUTRAL)
@sampled(
    "shape, dimension",
    [((3, 1331), 1), ((2, 5, 2049), 2), ((768, 5), 0), ((1, 256, 6), 1)],
    2,
)
def test_the_same_values(
    iree: Iree, kind: str, shape: tuple[int, ...], dimension: int
) -> None:
    module, count = spread(program(kind, shape, dimension))
    assert count == 2
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    (got,) = _ran(iree, module, x)
    fold = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}[kind]
    want = fold.reduce(x.astype(np.float64), axis=dimension)
    np.testing.assert_allclose(got, want, atol=1e-4 if kind == "add" else 0)


@pytest.mark.parametrize(
    "text",
    [
        program("add", (3, 1331), 1, init="1.0"),  # would be added twice
        program("maximum", (3, 1331), 1, init="0.0"),
        program("add", (3, 1024), 1),
        program("add", (3, 65), 1),
        program("add", (1021, 7), 0),  # a prime
        COUNT.replace("dense<0>", "dense<1>"),
    ],
)
def test_others_stay(text: str) -> None:
    before = str(parse(text))
    module, _ = spread(text)
    assert str(module) == before


MASKED = """
func.func @main(%x: tensor<300xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<300xf32>
  %one = stablehlo.constant dense<1> : tensor<300xi64>
  %i = stablehlo.convert %x : (tensor<300xf32>) -> tensor<300xi64>
  %m = stablehlo.compare LT, %i, %one
    : (tensor<300xi64>, tensor<300xi64>) -> tensor<300xi1>
  %t = stablehlo.select %m, %x, %zeros : tensor<300xi1>, tensor<300xf32>
  %0 = stablehlo.reduce(%t init: %zero) applies stablehlo.add
    across dimensions = [0] : (tensor<300xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}"""


def test_terms_made_of_64_bits_are_made_first(iree: Iree) -> None:
    module, count = spread(MASKED)
    assert count == 1
    names = [op.name for op in operations(module)]
    at = names.index("stablehlo.reduce")
    assert names[at - 1] == "stablehlo.optimization_barrier"
    again, _ = spread(str(module))
    assert str(again) == str(module)  # what is held apart stays
    x = np.random.default_rng(0).normal(size=300).astype(np.float32)
    (got,) = _ran(iree, module, x)
    want = np.where(x.astype(np.int64) < 1, x, 0).sum(dtype=np.float64)
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_count_is_made_in_32_bits(iree: Iree) -> None:
    module, _ = spread(COUNT)
    assert "tensor<300xi64>" in str(module)  # the conversion, which nothing reads
    bits = np.random.default_rng(0).integers(0, 2, 300).astype(bool)
    (got,) = _ran(iree, module, bits)
    assert got == bits.sum()
    assert got.dtype == np.int64
