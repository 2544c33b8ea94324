"""pcp.microbatch: written around the work on one piece, and expanded into a loop.

The sum of floats is kept in float32, or in their own type if that is wider.
"""

from collections.abc import Callable, Sequence

from pcp.dialect import hlo
from pcp.dialect.base import integer, strings
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import (
    bundled,
    drop_casts,
    pack,
    singles,
    stand_in,
    types_of,
    unpack,
)
from pcp.passes.core import loops
from pcp.passes.core.rewriting import before, operations, refuse
from pcp.passes.training.optimizers.numbers import scale, widen

Value = ir.Value
NAME = "pcp.microbatch"


def write(
    data: Sequence[Value],
    count: int,
    gives: Sequence[ir.Type],
    build: Callable[..., Sequence[Value]],
    carried: Sequence[Value] = (),
) -> list[Value]:
    """The mean of what `build(*parts, *carried)` gives for `count` pieces of `data`.

    `gives` are the types of that, and of integers it is the sum. What `build` gives
    behind it is `carried` to the next piece, and comes back last. One
    `pcp.microbatch`, its results unpacked.
    """
    i64 = ir.IntegerType.get_signless(64)
    reduce = [ir.StringAttr.get(_kind(type_)) for type_ in gives]
    types = [x.type for x in carried]
    attributes: dict[str, ir.Attribute] = {
        "count": ir.IntegerAttr.get(i64, count),
        "reduce": ir.ArrayAttr.get(reduce),
    }
    if carried:
        attributes["carried"] = ir.IntegerAttr.get(i64, len(carried))
    op = ir.Operation.create(
        NAME,
        operands=pack([*data, *carried]),
        results=bundled([*gives, *types]),
        regions=1,
        attributes=attributes,
    )
    parts = [*(_piece(x.type, count) for x in data), *types]
    places = [op.location] * len(parts)
    block = op.regions[0].blocks.append(*parts, arg_locs=places)
    with ir.InsertionPoint(block), op.location:
        found = build(*block.arguments)
        ir.Operation.create("pcp.yield", operands=pack(found))
    return unpack(list(op.results))


def expand_all(module: ir.Module) -> None:
    """Every `pcp.microbatch` of the module as a loop, inner ones first."""
    for op in reversed(operations(module)):
        if op.name == NAME:
            expand(op)


def expand(op: ir.Operation) -> None:
    """A loop over the pieces that sums what the region gives, in the op's place."""
    count, reduce = integer(op, "count"), strings(op, "reduce")
    types = types_of(list(op.results))[: len(reduce)]
    for type_, kind in zip(types, reduce, strict=True):
        _check(op, type_, kind)
    operands = list(op.operands)
    with before(op):
        given = singles(operands)
        carried = integer(op, "carried")
        data, first = given[: len(given) - carried], given[len(given) - carried :]

        def step(i: Value, *values: Value) -> list[Value]:
            sums, state = values[: len(types)], values[len(types) :]
            found = _inlined(op, [*(_part(x, i, count) for x in data), *state])
            added = zip(sums, found, strict=False)
            return [*(hlo.add(s, _wide(x)) for s, x in added), *found[len(types) :]]

        zeros = [_wide(hlo.zeros(type_)) for type_ in types]
        sums = loops.counted(count, [*zeros, *first], step)
        means = [
            hlo.convert(
                scale(total, 1 / count) if kind == "mean" else total,
                hlo.element_type(type_),
            )
            for total, type_, kind in zip(sums, types, reduce, strict=False)
        ]
        stand_in(list(op.results), [*means, *sums[len(types) :]])
    op.erase()
    drop_casts(operands)


def _kind(type_: ir.Type) -> str:
    return "sum" if isinstance(hlo.element_type(type_), ir.IntegerType) else "mean"


def _check(op: ir.Operation, type_: ir.Type, kind: str) -> None:
    element = hlo.element_type(type_)
    floats = hlo.is_float(element) or isinstance(element, ir.ComplexType)
    if kind == "mean" and not floats:
        refuse(op, f"a mean of {type_} would be rounded; take the sum, or convert it")
    if str(element) == "i1":
        refuse(op, f"a sum of {type_} is no count; convert it to an integer")


def _wide(x: Value) -> Value:
    return widen(x) if hlo.is_float(hlo.element_type(x)) else x


def _inlined(op: ir.Operation, parts: Sequence[Value]) -> list[Value]:
    """Move the op's region to the end of the block built here; what it yields."""
    block = op.regions[0].blocks[0]
    *ops, end = [view.operation for view in block.operations]
    for argument, part in zip(block.arguments, parts, strict=True):
        argument.replace_all_uses_with(part)
    last = list(ir.InsertionPoint.current.block.operations)[-1].operation
    for inner in ops:
        inner.move_after(last)
        last = inner
    yielded = list(end.operands)
    end.erase()
    found = singles(yielded)
    drop_casts(yielded)
    return found


def _piece(type_: ir.Type, count: int) -> ir.Type:
    batch, *rest = hlo.shape_of(type_)
    return hlo.tensor((batch // count, *rest), hlo.element_type(type_))


def _part(x: Value, i: Value, count: int) -> Value:
    """Piece i of the samples."""
    batch, *rest = hlo.shape_of(x)
    zero = hlo.zeros(i.type)
    start = hlo.multiply(i, hlo.constant_like(i, batch // count))
    return hlo.dynamic_slice(x, [start, *[zero] * len(rest)], [batch // count, *rest])
