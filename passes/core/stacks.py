"""Stacks: tensors of one type, one under the other, as one tensor.

Stacking n tensors and taking one of n rows are two ops each, which this file makes and
finds again. At the border of a function neither is work: the runtime holds the rows of
a stack as one tensor (`pcp-stack-arguments`).
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import defining, ints

CONCATENATE, RESHAPE = "stablehlo.concatenate", "stablehlo.reshape"


def stack(values: Sequence[ir.Value]) -> ir.Value:
    """The values, of one type, one under the other."""
    rows = [hlo.reshape(x, (1, *hlo.shape_of(x))) for x in values]
    return hlo.concatenate(rows, 0)


def row(stacked: ir.Value, number: int) -> ir.Value:
    """Row `number` of a stack."""
    _, *shape = hlo.shape_of(stacked)
    start, limit = [number, *[0] * len(shape)], [number + 1, *shape]
    return hlo.reshape(hlo.slice_(stacked, start, limit), shape)


def stacked_by(op: ir.Operation) -> list[ir.Value] | None:
    """The values that a concatenation stacks; None of any other op."""
    if op.name != CONCATENATE or len(op.operands) < 2:
        return None
    _, *shape = hlo.shape_of(op.result)
    if hlo.shape_of(op.result)[0] != len(op.operands):
        return None
    values: list[ir.Value] = []
    for operand in op.operands:
        made = defining(operand, "reshape")
        if made is None or list(hlo.shape_of(made.operands[0])) != shape:
            return None
        values.append(made.operands[0])
    return values


def row_of(value: ir.Value) -> tuple[ir.Value, int] | None:
    """The stack and the number of the row of it that a value is; else None."""
    reshaped = defining(value, "reshape")
    cut = None if reshaped is None else defining(reshaped.operands[0], "slice")
    if cut is None:
        return None
    stacked = cut.operands[0]
    first, *starts = ints(cut, "start_indices")
    last, *_ = ints(cut, "limit_indices")
    _, *shape = hlo.shape_of(stacked)
    whole = [*hlo.shape_of(cut.result)] == [1, *shape] and not any(starts)
    if not whole or last != first + 1 or [*hlo.shape_of(value)] != shape:
        return None
    return stacked, first


def rows_of(stacked: ir.Value) -> list[ir.Value]:
    """The rows of a stack that is only taken apart, in order; else none.

    `row` made them, each once.
    """
    found: dict[int, ir.Value] = {}
    for use in stacked.uses:
        cut = use.owner.operation
        readers = [use.owner.operation for r in cut.results for use in r.uses]
        values = [v for reader in readers for v in reader.results]
        place = row_of(values[0]) if len(values) == 1 else None
        if place is None or place[0] != stacked:
            return []
        found[place[1]] = values[0]
    if not found or {*found} != {*range(hlo.shape_of(stacked)[0])}:
        return []
    return [found[i] for i in range(len(found))]
