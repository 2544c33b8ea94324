"""What spreads one number over a tensor, made apart for each op that reads it.

Two parameters of one shape share the constants of their updates. If these were one
value, the layout of one parameter would be carried to the other through them. What
says how one is to lie is made again with it.

Nor do they share what their first values are drawn from: a function of numbers alone
makes results that are to lie unalike each from its own, so that each member draws its
parts and nobody has to send any.
"""

from collections.abc import Sequence

from pcp.dialect.bindings import ir
from pcp.dialect.inlining import remap
from pcp.layout import Axes
from pcp.passes.core import constants
from pcp.passes.core.walk import block_of, returned, walk
from pcp.passes.sharding.layout import SHARDING, from_attribute
from pcp.passes.sharding.ports import port_shardings

Value = ir.Value

#: Ops that say how tensors are to lie, and compute nothing.
HINTS = ("pcp.constraint", "pcp.barrier_prop")


def split(function: ir.Operation) -> None:
    """Give every further reader of an expansion a copy of its own."""
    if all(not _is_ranked(argument) for argument in block_of(function, 0).arguments):
        _draw_apart(function)
    for op in reversed(list(walk(block_of(function, 0)))):  # readers first
        if not _is_expansion(op) or SHARDING in op.attributes:
            continue
        for use in list(op.results[0].uses)[1:]:
            with ir.InsertionPoint(op):
                copy = op.clone()
            use.owner.operands[use.operand_number] = copy.operation.results[0]


def _is_expansion(op: ir.Operation) -> bool:
    if op.name in HINTS:
        owner = op.operands[0].owner
        return not isinstance(owner, ir.Block) and _is_expansion(owner.operation)
    if op.name == "stablehlo.broadcast_in_dim":
        return not ir.RankedTensorType(op.operands[0].type).rank
    if op.name not in constants.CONSTANTS:
        return False
    value = op.results[0]
    attribute = constants.elements(value)
    ranked = isinstance(value.type, ir.RankedTensorType) and value.type.rank
    return bool(ranked and attribute is not None and attribute.is_splat)


def _is_ranked(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and bool(type_.rank)


def _draw_apart(function: ir.Operation) -> None:
    """Copies of what results are made of that are said to lie in different ways."""
    end = returned(block_of(function, 0))
    said = port_shardings(function, "res_attrs", len(end.operands))
    alike: dict[Sequence[Axes], list[int]] = {}
    for place, (value, sharding) in enumerate(zip(end.operands, said, strict=True)):
        if _is_ranked(value):
            dims = () if sharding is None else from_attribute(sharding).dims
            alike.setdefault(dims if any(dims) else (), []).append(place)
    taken: set[ir.Operation] = set()
    for places in alike.values():
        _make_own(function, end, places, taken)


def _make_own(
    function: ir.Operation,
    end: ir.Operation,
    places: list[int],
    taken: set[ir.Operation],
) -> None:
    """Make these results of no op in `taken`; the ops they are made of are added."""
    behind: set[Value] = {end.operands[place] for place in places}
    *ops, _ = [view.operation for view in block_of(function, 0).operations]
    own = []
    for op in reversed(ops):
        if any(result in behind for result in op.results):
            own.append(op)
            op.walk(lambda inner: _read(inner, behind))
    made: dict[Value, Value] = {}
    for op in reversed(own):
        copied = op
        if op in taken:
            with ir.InsertionPoint(op):
                copied = op.clone().operation
            made.update(zip(op.results, copied.results, strict=True))
        copied.walk(lambda inner: remap(inner, made))
        taken.add(copied)
    for place in places:
        value = end.operands[place]
        end.operands[place] = made.get(value, value)


def _read(op: ir.Operation, values: set[Value]) -> ir.WalkResult:
    values.update(op.operands)
    return ir.WalkResult.ADVANCE
