"""Straight functions: those that take the same steps in each call.

Where such a function's results lie, in new memory or in that of an argument, is the
same in each call, so the runtime looks for shared memory in the first one alone
(`pcp.runtime.program.aliasing`). A branch may return its argument or a new tensor, a
loop of no trips what it began with, and what a function of the host gives back is not
known here.
"""

from pcp.dialect.bindings import ir
from pcp.passes.core.functions import callees, symbol_name
from pcp.passes.core.rewriting import operations

BRANCHES = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if"})


def straight(module: ir.Module) -> frozenset[str]:
    """The names of a module's functions without branches, loops and foreign calls."""
    inside = {
        symbol_name(op): [*operations(op.operation)]
        for op in module.body.operations
        if op.operation.name == "func.func" and op.regions[0].blocks
    }
    found = {
        name
        for name, ops in inside.items()
        if not any(op.name in BRANCHES for op in ops)
    }
    calls = {
        name: {callee for op in inside[name] for callee in callees(op)}
        for name in found
    }
    while left := {name for name in found if not calls[name] <= found}:
        found -= left
    return frozenset(found)
