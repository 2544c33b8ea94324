"""The pass pcp-checkpoint-loops."""

import math
from dataclasses import dataclass

from pcp.autodiff.loops.cut_loops import CHECKPOINT
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.passes.analysis import loops
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import operations


@dataclass(frozen=True)
class CheckpointLoops(Pass):
    """Have the reverse of each loop of known length keep fewer states.

    Sets `pcp.checkpoint = k` on each `while` of N > 1 known iterations that has
    none; `every` is k, or "sqrt" for ⌈√N⌉. pcp-grad and pcp-vjp then cut the loop
    into segments of k iterations: they keep N/k + k states in place of the values
    of N iterations, and run each segment once more.

        %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<f32>
          cond {...} do {...}

    becomes, with `pcp-checkpoint-loops` and 100 iterations,

        %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<f32>
          attributes {pcp.checkpoint = 10 : i64} cond {...} do {...}

    Loops of unknown length need no attribute: they keep few states anyway. Run it
    before the derivative is taken, and inline calls first where a loop's bound is a
    function's argument.
    """

    name = "pcp-checkpoint-loops"
    every: str = "sqrt"

    def run(self, module: ir.Module) -> None:
        """Set the attribute on every loop of the module that can be cut."""
        fixed = int(self.every) if self.every.isdecimal() else 0
        if self.every != "sqrt" and fixed < 1:
            raise PassError(
                f'{self.name}: every={self.every} is neither "sqrt" nor a positive '
                "number of iterations"
            )
        with module.context:
            for op in operations(module.operation):
                if op.name == "stablehlo.while" and CHECKPOINT not in op.attributes:
                    _mark(op, fixed)


def _mark(loop: ir.Operation, fixed: int) -> None:
    counter = loops.counter(loop)
    if counter is not None and counter.trips > 1:
        root = math.isqrt(counter.trips - 1) + 1
        loop.attributes[CHECKPOINT] = hlo.i64(fixed or root)
