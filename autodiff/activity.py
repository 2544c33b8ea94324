"""Which values depend on what is differentiated, and what regions capture.

A value is *active* if it is a float or complex tensor that depends on a source
through ops that pass derivatives on (`shifts` names one more that does not). The
other half of the usual analysis,
whether a result depends on the value, needs no sets: the reverse walk meets a
cotangent exactly there. So the work done is the intersection of both.
"""

from collections.abc import Iterable

from pcp.autodiff.registry import is_no_gradient
from pcp.autodiff.shifts import cancels
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value

#: Active values, each with the source it was first reached from, for messages.
Activity = dict[Value, str]


def captures(op: ir.Operation) -> list[Value]:
    """Values used inside the op's regions and defined outside, in order of use."""
    inside: set[Value] = set()
    found: dict[Value, None] = {}
    for region in op.regions:
        _collect(region, inside, found)
    return list(found)


def _collect(region: ir.Region, inside: set[Value], found: dict[Value, None]) -> None:
    for block in region.blocks:
        inside.update(block.arguments)
        for nested in block.operations:
            found.update((v, None) for v in nested.operands if v not in inside)
            for inner in nested.regions:
                _collect(inner, inside, found)
            inside.update(nested.results)


def inputs(op: ir.Operation) -> tuple[Value, ...]:
    """The operands, then what the regions capture."""
    operands = tuple(op.operands)
    return operands + tuple(captures(op)) if len(op.regions) else operands


def propagate(ops: Iterable[ir.Operation], active: Activity) -> Activity:
    """Extend `active` through `ops` in program order; returns it."""
    for op in ops:
        source = next((active[v] for v in inputs(op) if v in active), None)
        if source is None or is_no_gradient(op.name) or cancels(op):
            continue
        for result in op.results:
            if hlo.is_differentiable(result):
                active[result] = source
    return active
