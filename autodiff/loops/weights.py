"""The exponentials of attention in a loop: made again, for they are all its pairs.

A tape of them has a number for each pair of positions of each iteration. What they are
made of, a product of q and k, is as large as positions, and on the tape for the
derivative in any case.
"""

from collections.abc import Iterable
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.elementwise import ELEMENTWISE, body_kind
from pcp.passes.core.rewriting import STOP, defining

Value = ir.Value

_PLACED = ("stablehlo.reshape", "stablehlo.transpose")
_THROUGH = ELEMENTWISE | {
    "stablehlo.broadcast_in_dim",
    "stablehlo.reduce",
    STOP,
    *_PLACED,
}


def made_again(body: ir.Block) -> set[Value]:
    """What exponentials of the body are made of, from their products on."""
    found: set[Value] = set()
    for view in body.operations:
        op = view.operation
        if op.name == "stablehlo.exponential" and _weighs(op.result, body):
            found |= _chain(op, body)
    return found


def _weighs(exponentials: Value, body: ir.Block) -> bool:
    """Whether a sum and products alone read them, as those of attention are."""
    readers = list(_readers(exponentials, body))
    sums = [op for op in readers if op.name == "stablehlo.reduce"]
    return (
        len(sums) == 1
        and len(readers) > 1
        and body_kind(sums[0].regions[0].blocks[0]) == "add"
        and all(op.name == "stablehlo.dot_general" for op in readers if op not in sums)
    )


def _readers(value: Value, body: ir.Block) -> Iterable[ir.Operation]:
    """Those in the body, not those of the derivative that is being written."""
    for use in value.uses:
        op = use.owner.operation
        if op.block != body:
            continue
        if op.name in _PLACED:
            yield from _readers(op.result, body)
        else:
            yield op


def _chain(exponential: ir.Operation, body: ir.Block) -> set[Value]:
    """All between a product and its exponentials; nothing where they are made else."""
    shifted = defining(exponential.operands[0], "subtract")
    pairs = hlo.size(exponential.result)
    found, pending, products = {exponential.result}, list(exponential.operands), []
    while pending:
        value = pending.pop()
        op = defining(value)
        if op is None or op.block != body or value in found or len(op.results) > 1:
            continue
        if op.name == "stablehlo.dot_general" and hlo.size(value) == pairs:
            products.append(op)
        elif op.name in _THROUGH and hlo.size(value) in (pairs, _rows(exponential)):
            pending += op.operands
        else:
            continue
        found.add(value)
    small = len(products) == 1 and all(
        hlo.size(operand) <= pairs for operand in products[0].operands
    )
    return found if shifted is not None and small else set()


def _rows(exponential: ir.Operation) -> int:
    """How many rows there are: the exponentials are summed along the last dimension."""
    return prod(hlo.shape_of(exponential.result)[:-1])
