"""What is said on ops of programs in stages.

The user's `pcp.stage`, on an op or a call, is its pipeline stage; on a result it is
the one that gets it. `pcp.settled` stands
on a barrier: what it holds is to be done before the next message comes.
"""

from pcp.dialect.bindings import ir
from pcp.dialect.roles import STAGE
from pcp.passes.core.rewriting import refuse

MARK = STAGE
SETTLED = "pcp.settled"


def mark_of(op: ir.Operation) -> int | None:
    """The stage that an op is marked with; None without a mark."""
    if MARK not in op.attributes:
        return None
    said = op.attributes[MARK]
    if not isinstance(said, ir.IntegerAttr):
        refuse(op, f"{MARK} is the number of a stage, not {said}")
    return ir.IntegerAttr(said).value
