"""Which tables a program looks up by its arguments, and how many rows they have."""

from collections.abc import Iterator

from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows
from pcp.passes.core.rewriting import operations

#: Ops through which a number stays what it is, or may: of an index below zero a
#: frontend takes `index + rows`. Not `stablehlo.clamp`, behind which none is too large.
_THROUGH = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("convert", "reshape", "broadcast_in_dim", "transpose", "slice"),
        *("select", "add", "concatenate"),
    )
)


def table_rows(main: ir.Operation) -> Iterator[tuple[int, int, int]]:
    """Argument of the indices, argument of the table, rows; of each lookup in `main`.

    A lookup is a gather of single rows, with indices that an argument holds.
    """
    for op in operations(main):
        if op.name != "stablehlo.gather":
            continue
        windows = Windows.of_gather(op.attributes["dimension_numbers"])
        table = _arguments(op.operands[0], frozenset(("stablehlo.convert",)))
        if len(windows.index_map) != 1 or len(table) != 1:
            continue
        rows = ir.RankedTensorType(op.operands[0].type).shape[windows.index_map[0]]
        for index in _arguments(op.operands[1], _THROUGH):
            yield index, next(iter(table)), rows


def _arguments(value: ir.Value, through: frozenset[str]) -> set[int]:
    """The arguments of the function that a value comes from, through these ops."""
    found, seen, todo = set(), set(), [value]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        owner = at.owner
        if isinstance(owner, ir.Block):
            if owner.owner.operation.name == "func.func":
                found.add(ir.BlockArgument(at).arg_number)
        elif owner.name in through:
            todo += owner.operands
    return found
