"""ATen ops written out, so that what follows has torch's value and derivative.

torch-mlir's lowering keeps an op's value. Its derivative at a tie or a kink is lost
with the op: `relu` becomes `max(x, 0)`, whose slope at 0 is shared, where torch's is 0.
Here such an op is written as selects, which say whose side the boundary is on; NaN
takes the branch that keeps it. A branch that is not taken must be finite: zero times
what it would be is NaN. Other formulas are of ops whose lowering has another value.

Each cites the entry of torch's derivatives.yaml that it stands for; the tests compare
all with torch's own autograd at their special points.
"""

from typing import Any

from pcp.frontends.pytorch.along import Along
from pcp.frontends.pytorch.formula import Formula
from pcp.frontends.pytorch.images import Images
from pcp.frontends.pytorch.losses import Losses
from pcp.frontends.pytorch.missing import Missing
from pcp.frontends.pytorch.pointwise import Pointwise


def formulas(torch: Any) -> dict[Any, Formula]:
    """A decomposition for each op, for `ExportedProgram.run_decompositions`."""
    tables = [kind(torch).table() for kind in (Pointwise, Along, Losses, Missing)]
    found = {op: for_reals(f) for table in tables for op, f in table.items()}
    aten = torch.ops.aten
    for op in (aten.remainder.Scalar, aten.remainder.Tensor):
        found[op] = Pointwise(torch).remainder
    found |= Missing(torch).made()
    found[aten.slice_scatter.default] = Along(torch).slice_scatter
    found[aten.upsample_nearest2d.vec] = Images(torch).nearest
    return found


def for_reals(formula: Formula) -> Formula:
    """The formula for floats that are not complex; others stay the op."""

    def decompose(x: Any, *args: Any, **options: Any) -> Any:
        if not x.is_floating_point():
            return NotImplemented
        return formula(x, *args, **options)

    return decompose
