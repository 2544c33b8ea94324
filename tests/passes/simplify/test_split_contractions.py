"""pcp-split-contractions: same product, smaller steps; what gains nothing stays."""

import numpy as np
import pytest
from helpers.servers.interpreter import Interpreter

from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.simplify.split_contractions import SplitContractions


def product(length: int, left: str, right: str, numbers: str, result: str) -> str:
    """A function of one dot_general."""
    a, b = f"tensor<{length}x{left}>", f"tensor<{length}x{right}>"
    return f"""
func.func @main(%x: {a}, %g: {b}) -> tensor<{result}> {{
  %0 = stablehlo.dot_general %x, %g, {numbers} : ({a}, {b}) -> tensor<{result}>
  return %0 : tensor<{result}>
}}"""


LONG = product(64, "3x2xf32", "5xf32", "contracting_dims = [0] x [0]", "3x2x5xf32")


def test_same_product(interpreter: Interpreter) -> None:
    module = parse(LONG)
    SplitContractions(chunk=16, least=1).run(module)
    assert module.operation.verify()
    text = str(module)
    assert "tensor<4x16x3x2xf32>" in text
    random = np.random.default_rng(0)
    x, g = (random.normal(size=s).astype(np.float32) for s in ((64, 3, 2), (64, 5)))
    (got,) = interpreter.run(text, [x, g])
    want = np.tensordot(x.astype(np.float64), g.astype(np.float64), (0, 0))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


KEPT = {
    "short": product(48, "3xf32", "5xf32", "contracting_dims = [0] x [0]", "3x5xf32"),
    "uneven": product(66, "3xf32", "5xf32", "contracting_dims = [0] x [0]", "3x5xf32"),
    "small": product(64, "2xf32", "2xf32", "contracting_dims = [0] x [0]", "2x2xf32"),
    "integers": product(
        64, "3xi32", "5xi32", "contracting_dims = [0] x [0]", "3x5xi32"
    ),
    "batched": product(
        64,
        "3xf32",
        "3x5xf32",
        "batching_dims = [1] x [1], contracting_dims = [0] x [0]",
        "3x5xf32",
    ),
    "trailing": product(
        64, "64xf32", "5xf32", "contracting_dims = [1] x [0]", "64x5xf32"
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_kept(case: str) -> None:
    module = parse(KEPT[case])
    before = str(module)
    SplitContractions(chunk=16, least=5).run(module)
    assert str(module) == before


def test_the_default_splits_the_gradient_of_a_weight() -> None:
    numbers = "contracting_dims = [0] x [0]"
    module = parse(product(2048, "256xf32", "256xf32", numbers, "256x256xf32"))
    SplitContractions().run(module)
    assert "stablehlo.reduce" in [op.name for op in operations(module)]
