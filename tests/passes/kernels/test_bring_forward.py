"""What a kernel reads, made before anybody reads what the kernel gives."""

import pytest

from pcp.dialect.context import make_context, parse
from pcp.passes.kernels.bring_forward import bring_forward

PROGRAM = """
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %slope = stablehlo.negate %x : tensor<4xf32>
  %sent = "util.call"(%slope) {callee = @pcp_rt.all_to_all_0_f32_4}
    : (tensor<4xf32>) -> tensor<4xf32>
  %got = "util.call"(FROM) {callee = @pcp_rt.KIND_1_f32_4}
    : (tensor<4xf32>) -> tensor<4xf32>
  %read = stablehlo.optimization_barrier %got : tensor<4xf32>
  return %sent, %read : tensor<4xf32>, tensor<4xf32>
}
"""
SLOPE, SENT, GOT, READ = range(4)


@pytest.mark.parametrize(
    ("source", "kind", "order"),
    [
        ("%x", "all_to_all", [SLOPE, GOT, READ, SENT]),
        ("%slope", "all_to_all", [SLOPE, SENT, GOT, READ]),
        ("%x", "recv", [SLOPE, SENT, GOT, READ]),
    ],
    ids=["free", "needs_the_result", "has_an_effect"],
)
def test_ops_move_where_they_may(source: str, kind: str, order: list[int]) -> None:
    context = make_context()
    context.allow_unregistered_dialects = True
    text = PROGRAM.replace("FROM", source).replace("KIND", kind)
    module = parse(text, context)
    body = module.body.operations[0].regions[0].blocks[0]
    *ops, _ = [view.operation for view in body.operations]
    bring_forward([ops[READ].result], [ops[SLOPE].result], body)
    *after, _ = [view.operation for view in body.operations]
    assert after == [ops[i] for i in order]
