"""`pcp-isolate-sorts`: keep every result of a sort, also one that nothing reads.

IREE drops a result without users from the kernel's own, and its code generators for
GPUs then find no memory for it: "failed to bufferize op" for CUDA, and for SPIR-V
"'vector.transfer_read' op with rank > 1". A stable order leaves one always: the
positions that decide between equals (`legalize_sorts`).
"""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import HOLD, operations


@dataclass(frozen=True)
class IsolateSorts(Pass):
    """Put one barrier behind each sort, around all its results.

    Assumes what pcp-legalize leaves. A result without users goes along, and is written
    to memory like the others. The numbers are the same. Before and after:

        %0:2 = "stablehlo.sort"(%keys, %positions) ...
        return %0#0

        %0:2 = "stablehlo.sort"(%keys, %positions) ...
        %1:2 = stablehlo.optimization_barrier %0#0, %0#1
        return %1#0
    """

    name = "pcp-isolate-sorts"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        for op in operations(module):
            if op.name == "stablehlo.sort" and not _is_isolated(op):
                _isolate(op)


def _is_isolated(sort: ir.Operation) -> bool:
    users = {u.owner.operation for result in sort.results for u in result.uses}
    return any(
        user.name == HOLD and set(sort.results) <= set(user.operands) for user in users
    )


def _isolate(sort: ir.Operation) -> None:
    with ir.InsertionPoint.after(sort), sort.location:
        held = hlo.op(
            "optimization_barrier", list(sort.results), [x.type for x in sort.results]
        )
    for result, kept in zip(sort.results, held.results, strict=True):
        result.replace_all_uses_except(kept, held)
