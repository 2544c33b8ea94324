"""What a kernel reads, made before anybody reads what the kernel gives.

Attention's slopes are one kernel where the program has several ops. Between them a
collective of one slope may have begun before another one brought what the kernel
reads: collectives that do not depend on each other may begin in another order.
"""

from collections.abc import Iterable, Sequence

from pcp.dialect.base import symbol
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import HOLD, is_pure
from pcp.passes.core.walk import used

_CALL = "util.call"
_COLLECTIVES = tuple(
    f"pcp_rt.{kind}_"
    for kind in "all_gather all_reduce all_to_all permute reduce_scatter".split()
)
"""Imports that members may call in another order: a tag says which is which."""


def bring_forward(
    values: Iterable[ir.Value], results: Sequence[ir.Value], block: ir.Block
) -> None:
    """Move what makes the values in front of all of the block that reads `results`.

    Nothing moves where some of it needs one of these, or has other effects.
    """
    ops = [view.operation for view in block.operations]
    order = {op: place for place, op in enumerate(ops)}
    readers = [_home(use.owner.operation, order) for r in results for use in r.uses]
    first = min((order[op] for op in readers if op is not None), default=len(ops))
    behind = _makers(values, order, first)
    needed = {value for op in behind for value in used(op)}
    if needed.isdisjoint(results) and all(map(_is_free, behind)):
        for op in sorted(behind, key=order.__getitem__):
            op.move_before(ops[first])


def _makers(
    values: Iterable[ir.Value], order: dict[ir.Operation, int], first: int
) -> set[ir.Operation]:
    """The block's ops from `first` on that the values need."""
    found: set[ir.Operation] = set()
    waiting = list(values)
    while waiting:
        owner = waiting.pop().owner
        if isinstance(owner, ir.Block) or owner.operation in found:
            continue
        if order.get(owner.operation, -1) >= first:
            found.add(owner.operation)
            waiting += used(owner.operation)
    return found


def _home(op: ir.Operation, order: dict[ir.Operation, int]) -> ir.Operation | None:
    """The op of the block that another one is, or is inside of."""
    while op is not None and op not in order:
        op = op.parent
    return op


def _is_free(op: ir.Operation) -> bool:
    """Whether all that counts is that an op comes before those that read it."""
    if op.name == _CALL:
        return symbol(op, "callee").startswith(_COLLECTIVES)
    return op.name == HOLD or is_pure(op)
