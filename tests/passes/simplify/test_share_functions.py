"""pcp-share-functions: one compiled function answers for both, over devices too."""

import numpy as np
from helpers.models.expanded_training import bundle, in_parallel, run_passes

from pcp.runtime.program.executor import Program

BODY = """
    %two = stablehlo.constant dense<2.0> : tensor<4xf32>
    %sum = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m}
      : (tensor<4xf32>) -> tensor<4xf32>
    %r = stablehlo.multiply %sum, %two : tensor<4xf32>
    return %r : tensor<4xf32>
"""
MODEL = f"""
  "pcp.mesh"() {{axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"}} : () -> ()
  func.func @main(%a: tensor<4xf32> {{pcp.name = "a", pcp.role = "data"}})
      -> tensor<4xf32> {{ {BODY} }}
  func.func @eval(%a: tensor<4xf32> {{pcp.name = "b", pcp.role = "data"}})
      -> tensor<4xf32> {{ {BODY} }}
"""


def test_collectives_of_what_is_shared_run_for_both() -> None:
    border = "pcp-lower-to-runtime,pcp-protect-arguments"
    made = bundle(run_passes(MODEL, f"pcp-share-functions,{border}"))
    functions = made.manifest.functions
    assert [part.name for part in functions["eval"].parts] == ["main"]
    assert functions["eval"].inputs[0].name == "b"
    assert len(made.manifest.collectives) == 1
    given = [np.arange(4, dtype=np.float32) + rank for rank in range(2)]

    def both(program: Program, rank: int) -> list[np.ndarray]:
        return [program[name](given[rank]) for name in ("main", "eval", "main", "eval")]

    for answers in in_parallel(made, 2, both):
        for answer in answers:
            np.testing.assert_array_equal(answer, 2 * (given[0] + given[1]))
