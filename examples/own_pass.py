"""A pass of one's own, run beside pcp's.

python examples/own_pass.py
"""

from dataclasses import dataclass
from pathlib import Path

import pcp
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes import Pass, Pipeline

MODEL = Path(__file__).parent / "models/nanogpt_small.mlir"


@dataclass(frozen=True)
class MultiplyByReciprocal(Pass):
    """Division by what was broadcast becomes multiplication by its reciprocal.

    %1 = stablehlo.divide %0, %c      // %c is broadcast
    %1 = stablehlo.multiply %0, %r    // %r = 1 / %c
    """

    name = "example-multiply-by-reciprocal"

    def run(self, module: ir.Module) -> None:
        for function in module.body.operations:
            for op in list(function.regions[0].blocks[0].operations):
                if op.operation.name == "stablehlo.divide":
                    self._rewrite(op.operation)

    def _rewrite(self, op: ir.Operation) -> None:
        value, divisor = op.operands
        if _name(divisor) != "stablehlo.broadcast_in_dim":
            return
        with op.location, ir.InsertionPoint(op):
            one = hlo.constant_like(divisor, 1.0)
            new = hlo.multiply(value, hlo.divide(one, divisor))
        op.results[0].replace_all_uses_with(new)
        op.erase()


def _name(value: ir.Value) -> str:
    return getattr(value.owner, "name", "an argument")


def main() -> None:
    """Count the small GPT's divisions before and after."""
    module = pcp.load(MODEL)
    print("before:", str(module).count("stablehlo.divide"), "divisions")
    Pipeline((MultiplyByReciprocal(),)).run(module)
    module = pcp.run_passes(module, "pcp-simplify,cse")
    print("after: ", str(module).count("stablehlo.divide"), "divisions")


if __name__ == "__main__":
    main()
