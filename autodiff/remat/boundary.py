"""Where the forward half of a gradient function ends."""

from collections.abc import Sequence

from pcp.dialect.attributes import Future
from pcp.dialect.bindings import ir
from pcp.dialect.hlo import shape_of
from pcp.passes.analysis.memory import exchanges
from pcp.passes.analysis.storage import StorageGraph
from pcp.passes.core.rewriting import HOLD, ints

Value = ir.Value

#: Ops that give their operand, in another form.
_SAME = frozenset(("stablehlo.reshape", "stablehlo.convert"))


def last_of_forward(whole: StorageGraph, results: Sequence[int]) -> Sequence[int]:
    """The values with which the forward half of these results is computed.

    In a program over several devices the results come out of exchanges, which may be
    the function's last ops, together with the gradients'. They are seen through, and
    so are single numbers: found is what these are made of, as a loss in front of its
    exchange, and a count.
    """
    if not any(node.op.name.startswith("pcp.") for node in whole.nodes):
        return results
    found: set[Value] = set()
    seen: set[tuple[Value, int]] = set()
    pending = [(whole.values[result], 0) for result in results]
    while pending:
        at = pending.pop()
        if at in seen or isinstance(at[0].owner, ir.Block):
            continue
        seen.add(at)
        made_of = _made_of(*at)
        if made_of is None:
            found.add(at[0])
        else:
            pending += made_of
    return [i for i, value in enumerate(whole.values) if value in found] or results


def behind_waits(whole: StorageGraph, boundary: int) -> int:
    """The boundary, or behind the last exchange that begins before it.

    What stands in front of a wait fills the time of the exchange: little ops of the
    backward half that need none of its results, from all over the program.
    """
    waits = (
        at
        for at, node in enumerate(whole.nodes)
        if node.op.name == "pcp.wait" and whole.producer[node.operands[0]] < boundary
    )
    return max(boundary, *(at + 1 for at in waits), 0)


def _made_of(value: Value, place: int) -> list[tuple[Value, int]] | None:
    """What an element of a value, counted flat, comes from; None: this is meant."""
    op = value.owner
    if op.name == "pcp.wait":
        started = op.operands[0].owner
        return [(started.operands[0], place)] if len(started.operands) == 1 else None
    if exchanges(op):
        same = len(op.operands) == 1 and op.operands[0].type == value.type
        return [(op.operands[0], place)] if same else None
    if op.name in _SAME:
        return [(op.operands[0], place)]
    if op.name == HOLD:
        return [(op.operands[ir.OpResult(value).result_number], place)]
    if op.name == "stablehlo.slice" and len(shape_of(value)) == 1:
        start, stride = (ints(op, key) for key in ("start_indices", "strides"))
        return [(op.operands[0], start[0] + place * stride[0])]
    if op.name == "stablehlo.concatenate" and len(shape_of(value)) == 1:
        for operand in op.operands:
            if place < (size := shape_of(operand)[0]):
                return [(operand, place)]
            place -= size
    if all(_is_number(v) for v in (value, *op.operands)) and not len(op.regions):
        return [(operand, 0) for operand in op.operands]
    return None


def _is_number(value: Value) -> bool:
    return not isinstance(value.type, Future) and all(n == 1 for n in shape_of(value))
