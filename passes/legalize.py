"""pcp-legalize: programs that IREE compiles and runs without touching other memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.passes import legalize_indexing as indexing
from pcp.passes import legalize_norms as norms
from pcp.passes import legalize_reductions as reductions
from pcp.passes import legalize_windows as windows
from pcp.passes.base import CppPasses, Pass
from pcp.passes.elementwise import inline
from pcp.passes.rewriting import (
    before,
    functions,
    operations,
    refuse,
    replace,
    sweep,
)

Values = Sequence[ir.Value]


@dataclass(frozen=True)
class Legalize(Pass):
    """Rewrite what IREE rejects, or compiles into reads and writes out of bounds.

    Assumes static shapes (see pcp-import). Leaves StableHLO that IREE compiles:

    - `gather` clamps its indices and `scatter` drops the windows that do not fit,
      unless ranges.py proves that all of them do; `scatter` moves whole rows;
    - `select_and_scatter` with overlapping or padded windows is unfolded;
    - `batch_norm_*` and `map` are written out;
    - the negation of a summand moves behind the sum;
    - `pcp.stop_gradient`, which has done its work, gives way to its operand;
    - no CHLO is left.

    What has no such form (`custom_call`, `cholesky`, `triangular_solve`,
    `collective_broadcast`) is an error at its location.

        %0 = "stablehlo.gather"(%table, %tokens) ...
    becomes
        %i = stablehlo.clamp %zero, %tokens, %last
        %0 = "stablehlo.gather"(%table, %i) ...
    """

    name = "pcp-legalize"

    def run(self, module: ir.Module) -> None:
        """Rewrite in place, or raise `PassError` at an op that has no legal form."""
        if any(op.name.startswith("chlo.") for op in operations(module)):
            CppPasses("func.func(chlo-legalize-to-stablehlo)").run(module)
        for op in operations(module):
            _legalize(op)
        for function in functions(module):
            sweep(function)


def _legalize(op: ir.Operation) -> None:
    if (reason := REFUSED.get(op.name)) is not None:
        refuse(op, reason)
    if (rule := RULES.get(op.name)) is None:
        return
    with before(op):
        values = rule(op)
    if values is not None:
        replace(op, values)


def _map(op: ir.Operation) -> Values:
    return inline(op.regions[0].blocks[0], list(op.operands))


RULES: dict[str, Callable[[ir.Operation], Values | None]] = {
    "pcp.stop_gradient": lambda op: [op.operands[0]],
    "stablehlo.batch_norm_grad": norms.gradient,
    "stablehlo.batch_norm_inference": norms.inference,
    "stablehlo.batch_norm_training": norms.training,
    "stablehlo.gather": indexing.gather,
    "stablehlo.map": _map,
    "stablehlo.reduce": reductions.negated_sum,
    "stablehlo.scatter": indexing.scatter,
    "stablehlo.select_and_scatter": windows.select_and_scatter,
}

REFUSED: dict[str, str] = {
    "stablehlo.cholesky": "IREE has no kernel for it; factor on the host",
    "stablehlo.collective_broadcast": "IREE rejects it; write pcp.broadcast",
    "stablehlo.custom_call": "IREE cannot call it; write it in StableHLO ops",
    "stablehlo.triangular_solve": "IREE has no kernel for it; solve on the host",
}
