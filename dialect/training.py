"""What differentiation is told by an op of its own.

Training needs no others: `pcp-grad`, `pcp-accumulate` and `pcp-expand-training` make
functions whose arguments and results carry names and roles.
"""

from typing import Any

from pcp.dialect.base import Op, require
from pcp.dialect.bindings import ext


class StopGradient(Op, name="stop_gradient", traits=[ext.Pure]):
    """The value itself; its derivative is zero, in each mode and order.

    Gone after `pcp-inline-composites`, which stands behind the last derivative.

    %y = "pcp.stop_gradient"(%x) : (tensor<4xf32>) -> tensor<4xf32>
    """

    operand: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        """Equal types."""
        given, result = self.operands[0].type, self.results[0].type
        require(given == result, f"gives {result} for {given}; they must be equal")
