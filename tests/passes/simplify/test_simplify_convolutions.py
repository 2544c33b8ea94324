"""Convolutions take transposes into their dimension numbers, and compute the same."""

import numpy as np
import pytest
from helpers.servers.interpreter import Interpreter

from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.simplify.simplify import Simplify

ALL_MOVED = """
func.func @main(%x: tensor<5x2x6x3xf32>, %w: tensor<4x3x2x3xf32>)
    -> tensor<4x2x4x5xf32> {
  %a = stablehlo.transpose %x, dims = [1, 3, 0, 2]
    : (tensor<5x2x6x3xf32>) -> tensor<2x3x5x6xf32>
  %b = stablehlo.transpose %w, dims = [0, 3, 2, 1]
    : (tensor<4x3x2x3xf32>) -> tensor<4x3x2x3xf32>
  %r = stablehlo.reverse %b, dims = [2, 3] : tensor<4x3x2x3xf32>
  %c = stablehlo.convolution(%a, %r)
    dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {stride = [1, 1], pad = [[0, 0], [0, 1]], rhs_dilate = [1, 1]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<2x3x5x6xf32>, tensor<4x3x2x3xf32>) -> tensor<2x4x4x5xf32>
  %0 = stablehlo.transpose %c, dims = [2, 0, 1, 3]
    : (tensor<2x4x4x5xf32>) -> tensor<4x2x4x5xf32>
  return %0 : tensor<4x2x4x5xf32>
}
"""

READ_TWICE = ALL_MOVED.replace(
    "return %0 : tensor<4x2x4x5xf32>",
    "return %0, %c : tensor<4x2x4x5xf32>, tensor<2x4x4x5xf32>",
).replace("-> tensor<4x2x4x5xf32> {", "-> (tensor<4x2x4x5xf32>, tensor<2x4x4x5xf32>) {")


FEATURES_FIRST = ALL_MOVED.replace("dims = [2, 0, 1, 3]", "dims = [1, 0, 2, 3]")


@pytest.mark.parametrize(
    ("text", "left"), [(ALL_MOVED, 0), (READ_TWICE, 1), (FEATURES_FIRST, 1)]
)
def test_no_copies_for_a_layout(interpreter: Interpreter, text: str, left: int) -> None:
    """A result that is read in both layouts is computed once, and transposed."""
    random = np.random.default_rng(0)
    arguments = [
        random.normal(size=s).astype(np.float32) for s in [(5, 2, 6, 3), (4, 3, 2, 3)]
    ]
    module = parse(text)
    Simplify().run(module)
    assert module.operation.verify()
    listed = [op.name for op in operations(module)]
    assert listed.count("stablehlo.transpose") == left
    assert listed.count("stablehlo.convolution") == 1
    want = interpreter.run(text, arguments)
    got = interpreter.run(str(module), arguments)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-6)


def test_a_mask_that_is_read_is_not_compared_again() -> None:
    """`not` reads a byte an element, the inverse comparison two numbers."""
    text = """
func.func @main(%x: tensor<9xf32>, %y: tensor<9xf32>)
    -> (tensor<9xi1>, tensor<9xi1>) {
  %0 = stablehlo.compare EQ, %x, %y
    : (tensor<9xf32>, tensor<9xf32>) -> tensor<9xi1>
  %1 = stablehlo.not %0 : tensor<9xi1>
  return %0, %1 : tensor<9xi1>, tensor<9xi1>
}
"""
    module = parse(text)
    Simplify().run(module)
    assert [op.name for op in operations(module)].count("stablehlo.compare") == 1
