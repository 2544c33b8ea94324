"""Sorts: IREE's exchanges elements that compare equal, and a cut one it mistakes.

Where the order must be stable the position becomes one more operand, and decides
between equals.
"""

from collections.abc import Iterable, Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import sort
from pcp.passes.core.rewriting import integer
from pcp.passes.legalize.sorts.positions import index_type, position_in

Value = ir.Value


def stable(op: ir.Operation) -> Sequence[Value] | None:
    """The sort with its order made total where it must be stable; None: as it is."""
    if not _must_be_stable(op):
        return _hidden(op.clone().operation.results) if _is_cut(op) else None
    operands = list(op.operands)
    dimension = integer(op, "dimension")
    place = position_in(operands, dimension)
    every = operands
    if place is None:
        position = hlo.like(
            operands[0], element=index_type(hlo.shape_of(operands[0])[dimension])
        )
        every = [*operands, hlo.iota(position, dimension)]
        place = len(operands)
    less = op.regions[0].blocks[0]

    def total(*pairs: Value) -> Value:
        given = pairs[: 2 * len(operands)]
        swapped = [given[i ^ 1] for i in range(len(given))]
        neither = hlo.not_(_copied(less, swapped))
        left, right = pairs[2 * place], pairs[2 * place + 1]
        earlier = hlo.and_(neither, hlo.compare("LT", left, right))
        return hlo.or_(_copied(less, given), earlier)

    found = sort(every, dimension, total, is_stable=False)[: len(operands)]
    return _hidden(found) if _is_cut(op) else found


def _hidden(values: Iterable[Value]) -> Sequence[Value]:
    return [hlo.optimization_barrier(x) for x in values]


def _is_cut(op: ir.Operation) -> bool:
    """Whether a result is sliced. IREE takes that for a top_k, also where values and
    positions are cut differently, and then fails; a barrier hides the pattern."""
    users = (use.owner.operation for result in op.results for use in result.uses)
    return any(user.name == "stablehlo.slice" for user in users)


def _must_be_stable(op: ir.Operation) -> bool:
    """Asked for, and to be seen: of integers alone, equal ones are the same."""
    asked = hlo.attribute(op, "is_stable")
    if asked is None or not ir.BoolAttr(asked).value or not hlo.size(op.operands[0]):
        return False
    alone = len(op.operands) == 1
    whole = isinstance(hlo.element_type(op.operands[0]), ir.IntegerType)
    block = op.regions[0].blocks[0]
    plain = len(list(block.operations)) == 2  # a comparison and the return
    return not (alone and whole and plain)


def _copied(block: ir.Block, arguments: Sequence[Value]) -> Value:
    """What the comparator says of `arguments`; its ops are copied here."""
    values = dict(zip(block.arguments, arguments, strict=True))
    *ops, end = [view.operation for view in block.operations]
    for op in ops:
        copy = op.clone()
        for i, operand in enumerate(op.operands):
            copy.operands[i] = values.get(operand, operand)
        values.update(zip(op.results, copy.results, strict=True))
    answer = end.operands[0]
    return values.get(answer, answer)
