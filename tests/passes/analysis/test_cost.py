"""Operation counts against closed forms."""

import pytest

from pcp.autodiff.core import functions
from pcp.dialect.context import parse
from pcp.passes.analysis import cost

LOOP = """
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %n = stablehlo.constant dense<7> : tensor<i32>
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.sine %y : tensor<4xf32>
      stablehlo.return %j, %z : tensor<i32>, tensor<4xf32>
    }"""

CASES = {
    # 2 * m * n * k for each of the batch
    "dot_general": (
        "%x: tensor<3x5x7xf32>, %y: tensor<3x7x11xf32>",
        """%r = stablehlo.dot_general %x, %y, batching_dims = [0] x [0],
        contracting_dims = [2] x [1]
        : (tensor<3x5x7xf32>, tensor<3x7x11xf32>) -> tensor<3x5x11xf32>""",
        2 * 3 * 5 * 11 * 7,
        4 * (3 * 5 * 7 + 3 * 7 * 11 + 3 * 5 * 11),
    ),
    # 2 * outputs * window * channels of a group
    "convolution": (
        "%x: tensor<2x9x9x4xf32>, %k: tensor<3x3x2x6xf32>",
        """%r = stablehlo.convolution(%x, %k)
        dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {stride = [2, 2]}
        {batch_group_count = 1 : i64, feature_group_count = 2 : i64}
        : (tensor<2x9x9x4xf32>, tensor<3x3x2x6xf32>) -> tensor<2x4x4x6xf32>""",
        2 * (2 * 4 * 4 * 6) * (3 * 3) * 2,
        4 * (2 * 9 * 9 * 4 + 3 * 3 * 2 * 6 + 2 * 4 * 4 * 6),
    ),
    "reduce": (
        "%x: tensor<6x8xf32>, %z: tensor<f32>",
        """%r = stablehlo.reduce(%x init: %z) applies stablehlo.add
        across dimensions = [1] : (tensor<6x8xf32>, tensor<f32>) -> tensor<6xf32>""",
        6 * 8,
        4 * (6 * 8 + 1 + 6),
    ),
    "transpose": (
        "%x: tensor<6x8xf32>",
        "%r = stablehlo.transpose %x, dims = [1, 0] "
        ": (tensor<6x8xf32>) -> tensor<8x6xf32>",
        0,
        2 * 4 * 48,
    ),
    "reshape": (
        "%x: tensor<6x8xf32>",
        "%r = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<48xf32>",
        0,
        0,
    ),
    "narrow elements": (
        "%x: tensor<10xi1>, %y: tensor<10xbf16>",
        "%r = stablehlo.select %x, %y, %y : tensor<10xi1>, tensor<10xbf16>",
        10,
        10 + 3 * 20,
    ),
}


def total(arguments: str, text: str) -> cost.Cost:
    module = parse(f"func.func @main({arguments}) {{ {text}\n return }}")
    return cost.total(functions.body(functions.find(module, "main")).operations)


@pytest.mark.parametrize("name", CASES)
def test_closed_forms(name: str) -> None:
    arguments, text, flops, moved = CASES[name]
    assert total(arguments, text) == cost.Cost(flops, moved)


def test_loops_count_their_trips() -> None:
    """Each of 7 trips: the compare and the counter's add, 4 sines."""
    assert total("%x: tensor<4xf32>", LOOP).flops == 7 * (1 + 1 + 4)


def test_a_branch_counts_as_its_dearest() -> None:
    branch = """
      %r = "stablehlo.if"(%p) ({
        %s = stablehlo.sine %x : tensor<4xf32>
        stablehlo.return %s : tensor<4xf32>
      }, {
        %a = stablehlo.sine %x : tensor<4xf32>
        %b = stablehlo.sine %a : tensor<4xf32>
        stablehlo.return %b : tensor<4xf32>
      }) : (tensor<i1>) -> tensor<4xf32>"""
    assert total("%p: tensor<i1>, %x: tensor<4xf32>", branch).flops == 8
