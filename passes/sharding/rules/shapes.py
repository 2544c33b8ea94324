"""What rules ask of ops: shapes, element types, dimensions that go through."""

from collections.abc import Mapping, Sequence
from typing import Any

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.sharding.factors import (
    PASS,
    REPLICATE,
    WINDOW,
    Dim,
    FactorRule,
    Reach,
    Rules,
)


def is_static(value: ir.Value) -> bool:
    """Whether the value is a tensor of a known shape."""
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and type_.has_static_shape


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The whole tensor's shape."""
    return tuple(ir.RankedTensorType(value.type).shape)


def is_predicate(value: ir.Value) -> bool:
    """Whether the elements are booleans, whose sums no collective forms."""
    element = hlo.element_type(value)
    return isinstance(element, ir.IntegerType) and element.width == 1


def unchanged(op: ir.Operation, changed: set[int]) -> FactorRule:
    """Tensors of one rank; dimensions outside of `changed` go through."""
    rules = Rules()
    tensors = [v for v in (*op.operands, *op.results) if shape_of(v)]
    shared: dict[int, Dim] = {}
    for d, n in enumerate(shape_of(op.results[0])):
        if d not in changed:
            shared[d] = (rules.factor(n),)

    def dims(value: ir.Value) -> list[Dim]:
        return [
            shared[d] if d in shared else (rules.factor(n, REPLICATE),)
            for d, n in enumerate(shape_of(value))
        ]

    known = {v: dims(v) for v in tensors}
    return rules.done(
        [known.get(v, []) for v in op.operands], [known.get(v, []) for v in op.results]
    )


def reaching(
    op: ir.Operation, moved: Mapping[int, Sequence[dict[str, Any]]]
) -> FactorRule:
    """Tensors of one rank; dimensions outside of `moved` go through.

    Of a moved one, a part of the result needs of each operand of that rank what its
    entry says: the arguments of a `Reach` behind `size`.
    """
    rules = Rules()
    dims: list[Dim] = [
        (rules.factor(n, WINDOW if d in moved else PASS),)
        for d, n in enumerate(shape_of(op.results[0]))
    ]
    operands = [shape_of(v) for v in op.operands]
    for d, entries in moved.items():
        for i, entry in enumerate(entries):
            rules.reaches.append(Reach(dims[d][0], i, d, operands[i][d], **entry))
    return rules.done(
        [dims if shape else [] for shape in operands], [dims] * len(op.results)
    )
