"""`pcp-widen-masks`: boolean constants are kept in words.

IREE copies a constant of up to 256 bytes into the kernel that reads it, and counts a
boolean as a bit: the causal mask of 32 positions becomes an array of 1,024 words in the
private memory of each thread, once for each element of a vector. A driver unrolls it
for minutes (Mesa's lavapipe). A larger mask is read as bytes, which SPIR-V's code
generator cannot take out of words ("failed to legalize operation 'vector.bitcast'").
"""

from dataclasses import dataclass

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.constants import array, make, splat
from pcp.passes.core.rewriting import before, operations


@dataclass(frozen=True)
class WidenMasks(Pass):
    """Constants of `i1` become constants of `i32` behind a barrier, and a comparison.

    Assumes nothing; leaves the same booleans. Those of one value everywhere stay.
    IREE reads the words from memory, and compares where the mask is used.
    Before and after:

        %m = stablehlo.constant dense<[true, false]> : tensor<2xi1>

        %0 = stablehlo.constant dense<[1, 0]> : tensor<2xi32>
        %1 = stablehlo.optimization_barrier %0 : tensor<2xi32>
        %2 = stablehlo.constant dense<0> : tensor<2xi32>
        %m = stablehlo.compare NE, %1, %2 : ... -> tensor<2xi1>
    """

    name = "pcp-widen-masks"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        for op in operations(module):
            if op.name == "stablehlo.constant" and _is_mask(op.results[0]):
                _widen(op)


def _is_mask(value: ir.Value) -> bool:
    boolean = str(hlo.element_type(value)) == "i1"
    return boolean and hlo.size(value) > 1 and splat(value) is None


def _widen(op: ir.Operation) -> None:
    mask = array(op.results[0])
    assert mask is not None  # booleans are
    with before(op):
        type_ = hlo.like(op.results[0], element=ir.IntegerType.get_signless(32))
        words = make(mask.astype(np.int32), type_)
        held = hlo.optimization_barrier(words)
        wide = hlo.compare("NE", held, hlo.zeros(type_))
    op.results[0].replace_all_uses_with(wide)
    op.erase()
