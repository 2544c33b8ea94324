"""Reading and reusing the scalar bodies of reduce, scatter, sort and the like."""

from collections.abc import Sequence

from pcp.autodiff.core.functions import CALLS
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


COMMUTATIVE = frozenset({"add", "and", "maximum", "minimum", "multiply", "or", "xor"})


def combiner(op: ir.Operation, region: int = 0) -> str | None:
    """The op's short name if the body is one op of both arguments, in order."""
    block = op.regions[region].blocks[0]
    operations = list(block.operations)
    if len(operations) != 2 or len(block.arguments) != 2:
        return None
    inner, end = (o.operation for o in operations)
    if list(end.operands) != list(inner.results):
        return None
    name = inner.name.removeprefix("stablehlo.")
    given, wanted = list(inner.operands), list(block.arguments)
    if name in COMMUTATIVE and given == wanted[::-1]:
        return name
    return name if given == wanted else None


def returns_update(op: ir.Operation) -> bool:
    """Whether a scatter's body gives the update as it is (`set`)."""
    block = op.regions[0].blocks[0]
    operations = list(block.operations)
    return len(operations) == 1 and list(operations[0].operands) == [block.arguments[1]]


def lift(
    block: ir.Block, arguments: Sequence[Value], shape: Sequence[int]
) -> tuple[list[Value], list[ir.Operation]] | None:
    """The scalar body applied to whole tensors of `shape` at once.

    Returns its results and the ops made, in order, ready to be differentiated;
    None if some op of the body is not elementwise.
    """
    mapping: dict[Value, Value] = dict(zip(block.arguments, arguments, strict=True))
    made: list[ir.Operation] = []
    *ops, end = block.operations

    def wide(x: Value) -> Value:
        if x not in mapping:
            mapping[x] = hlo.splat(x, shape)
            made.append(mapping[x].owner)
        return mapping[x]

    for inner in ops:
        inner = inner.operation
        scalars = all(hlo.shape_of(r) == () for r in inner.results)
        if len(inner.regions) or not scalars or inner.name in CALLS:
            return None
        if not len(inner.operands):
            copy = inner.clone()
            made.append(copy)
            mapping[inner.results[0]] = wide(copy.results[0])
            continue
        copy = ir.Operation.create(
            inner.name,
            operands=[wide(x) for x in inner.operands],
            results=[hlo.tensor(shape, hlo.element_type(r)) for r in inner.results],
            attributes={name: inner.attributes[name] for name in inner.attributes},
        )
        made.append(copy)
        mapping.update(zip(inner.results, copy.results, strict=True))
    return [wide(x) for x in end.operands], made
