"""The dialects whose ops a program may hold, and how far pcp sees into them.

StableHLO and CHLO are what passes know. Ops of upstream's dialects on tensors (`arith`,
`linalg`, `math`, `tensor`) go through to IREE as they stand: they have no rule that
cuts them over a mesh, and no derivative unless an extension brings one.
"""

from pcp.dialect import loading
from pcp.dialect.bindings import ir
from pcp.dialect.context import UPSTREAM
from pcp.passes.core.rewriting import operations, refuse

KNOWN = ("builtin", "func", "stablehlo", "chlo", "pcp")

_WORDS = f"{', '.join(UPSTREAM[:-1])} and {UPSTREAM[-1]}"


def dialect_of(op: ir.Operation) -> str:
    """The dialect in front of the op's name."""
    return op.name.partition(".")[0]


def is_upstream(op: ir.Operation) -> bool:
    """Whether an op goes through to IREE unread."""
    return dialect_of(op) in UPSTREAM


def check_readable(op: ir.Operation) -> None:
    """Raise `PassError` at an op that no program may hold."""
    name = dialect_of(op)
    if name not in (*KNOWN, *UPSTREAM, *loading.registered()):
        refuse(
            op,
            "not a StableHLO op; lower the model to StableHLO first, or to ops of "
            f"{_WORDS} on tensors",
        )


def check_cuttable(module: ir.Module) -> None:
    """Raise `PassError` at an op that cannot be cut over devices, as it is not read."""
    for op in operations(module):
        if is_upstream(op) and op.name != "arith.constant":
            refuse(
                op,
                "it goes to IREE as it stands, and a program over a mesh is cut op by "
                "op; put it into a pcp.task (docs/heterogeneous.md), or write it in "
                "StableHLO",
            )
