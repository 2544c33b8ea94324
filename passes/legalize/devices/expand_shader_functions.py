"""pcp-expand-shader-functions: what shaders have no exact function of, written out.

Vulkan's own remainder is x - y·trunc(x / y) as it reads: of 1e10 and 3 another number,
and NaN of an infinite y. Its log(1 + x), as it reads, keeps no digit of a small x.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, operations
from pcp.passes.legalize.functions.logarithm import log_plus_one
from pcp.passes.legalize.functions.remainder import remainder
from pcp.passes.legalize.functions.words import Number, in_f32, is_double

RULES: dict[str, Callable[..., Number]] = {
    "stablehlo.log_plus_one": log_plus_one,
    "stablehlo.remainder": remainder,
}


@dataclass(frozen=True)
class ExpandShaderFunctions(Pass):
    """Write `remainder` and `log_plus_one` of floats as arithmetic, in f32.

    Assumes what pcp-legalize leaves; leaves neither of up to 32 bits. A remainder is
    exact, by long division of the mantissas in a loop; log(1 + x) is a polynomial.

        %0 = stablehlo.log_plus_one %x : tensor<3xf32>
    becomes
        %1 = stablehlo.add %x, %one : tensor<3xf32>
        %2 = stablehlo.bitcast_convert %1 : (tensor<3xf32>) -> tensor<3xui32>
        ...
        %0 = stablehlo.select %8, %x, %7 : ... -> tensor<3xf32>
    """

    name = "pcp-expand-shader-functions"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        for op in operations(module):
            if (rule := RULES.get(op.name)) is None or not _is_narrow(op.result):
                continue
            with before(op):
                value = in_f32(rule, *op.operands)
            op.result.replace_all_uses_with(value)
            op.erase()


def _is_narrow(x: ir.Value) -> bool:
    return hlo.is_float(hlo.element_type(x)) and not is_double(x)
