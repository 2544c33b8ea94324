"""What is said on ops of programs in stages.

The user's `pcp.stage`, on an op or a call, is its pipeline stage. `pcp.settled` stands
on a barrier: what it holds is to be done before the next message comes.
"""

from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import refuse

MARK = "pcp.stage"
SETTLED = "pcp.settled"


def mark_of(op: ir.Operation) -> int | None:
    """The stage that an op is marked with; None without a mark."""
    if MARK not in op.attributes:
        return None
    said = op.attributes[MARK]
    if not isinstance(said, ir.IntegerAttr):
        refuse(op, f"{MARK} is the number of a stage, not {said}")
    return ir.IntegerAttr(said).value
