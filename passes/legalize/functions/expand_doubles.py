"""pcp-expand-doubles: functions of f64 written out where IREE has none."""

from collections.abc import Callable
from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, operations
from pcp.passes.legalize.functions import doubles
from pcp.passes.legalize.functions.arctangent import angle
from pcp.passes.legalize.functions.power import power
from pcp.passes.legalize.functions.remainder import remainder
from pcp.passes.legalize.functions.trigonometry import Angle
from pcp.passes.legalize.functions.words import Number, is_double

RULES: dict[str, Callable[..., Number]] = {
    "stablehlo.atan2": angle,
    "stablehlo.cbrt": doubles.cbrt,
    "stablehlo.ceil": doubles.ceil,
    "stablehlo.cosine": lambda x: Angle(x).cosine(),
    "stablehlo.exponential_minus_one": doubles.exponential_minus_one,
    "stablehlo.log_plus_one": doubles.log_plus_one,
    "stablehlo.power": power,
    "stablehlo.remainder": remainder,
    "stablehlo.sine": lambda x: Angle(x).sine(),
    "stablehlo.tan": lambda x: Angle(x).tangent(),
    "stablehlo.tanh": doubles.tanh,
}


@dataclass(frozen=True)
class ExpandDoubles(Pass):
    """Write functions of f64 as arithmetic on numbers and on their bits.

    Assumes what pcp-legalize leaves: a `power` of x >= 0. Leaves no `sine`, `cosine`,
    `tan`, `tanh`, `exponential_minus_one`, `log_plus_one`, `power`, `atan2`, `cbrt`,
    `ceil` and `remainder` of f64, for which IREE calls functions of a C runtime that no
    bundle has, or loses digits. docs/accuracy.md says how exact they are. For targets
    that compute in f64: where IREE makes f32 of it, bits of 64 would be none.

        %0 = stablehlo.tanh %x : tensor<3xf64>
    becomes
        %1 = stablehlo.abs %x : tensor<3xf64>
        ...
        %0 = stablehlo.bitcast_convert %9 : (tensor<3xui64>) -> tensor<3xf64>
    """

    name = "pcp-expand-doubles"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        for op in operations(module):
            if (rule := RULES.get(op.name)) is None or not is_double(op.result):
                continue
            with before(op):
                value = rule(*(Number(x) for x in op.operands)).value
            op.result.replace_all_uses_with(value)
            op.erase()
