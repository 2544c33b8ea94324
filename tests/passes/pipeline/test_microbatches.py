"""Layouts of devices and of microbatches, found one by one and joined."""

from helpers.oracles.spmd import add_mesh

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse

ROWS = "tensor<8x4xf32>"
CUT = 'pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>'

#: What is said of a constant holds for all its readers; microbatches do without.
HINTED = f"""
func.func @grad(%x: {ROWS} {{pcp.name = "x", pcp.role = "data", {CUT}}},
    %w: tensor<4x4xf32> {{pcp.name = "w", pcp.role = "param"}})
    -> (tensor<f32>, tensor<4x4xf32>) {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %c = stablehlo.constant dense<3.0> : {ROWS}
  %k = "pcp.constraint"(%c) {{sharding = #pcp.sharding<@m, [["dp"], []], [], []>}}
    : ({ROWS}) -> {ROWS}
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : ({ROWS}, tensor<4x4xf32>) -> {ROWS}
  %a = stablehlo.multiply %h, %k : {ROWS}
  %b = stablehlo.add %a, %k : {ROWS}
  %l = stablehlo.reduce(%b init: %z) applies stablehlo.add across dimensions = [0, 1]
    : ({ROWS}, tensor<f32>) -> tensor<f32>
  %g = stablehlo.dot_general %x, %k, contracting_dims = [0] x [0]
    : ({ROWS}, {ROWS}) -> tensor<4x4xf32>
  return %l, %g : tensor<f32>, tensor<4x4xf32>
}}"""


def test_a_constant_of_several_readers_with_a_constraint() -> None:
    module = parse(HINTED)
    with module.context:
        add_mesh(module, {"pp": 2, "dp": 2})
    pipeline("builtin.module(pcp-stage{microbatches=4})").run(module)
    assert module.operation.verify()
    assert str(module).count('"pcp.schedule"') == 2  # one for each place along dp
