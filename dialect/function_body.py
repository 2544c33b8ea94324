"""A `func.func` from its arguments to its return: the one way a function is made."""

from collections.abc import Iterable, Mapping, Sequence

from pcp.dialect.bindings import ir

FUNCTION, RETURN = "func.func", "func.return"


def begin(
    attributes: Mapping[str, ir.Attribute],
    types: Sequence[ir.Type],
    locations: Iterable[ir.Location] | None = None,
) -> tuple[ir.Operation, ir.Block]:
    """A function at the insertion point, and its empty block of arguments.

    `locations` are those of the arguments; by default all have the current one. The
    function's type is not known before `finish`.
    """
    function = ir.Operation.create(FUNCTION, regions=1, attributes=dict(attributes))
    where = [ir.Location.current] * len(types) if locations is None else locations
    block = function.regions[0].blocks.append(*types, arg_locs=list(where))
    return function, block


def named(name: str) -> dict[str, ir.Attribute]:
    """The attributes of a function that has a name and no more."""
    return {
        "sym_name": ir.StringAttr.get(name),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get([], [])),
    }


def finish(function: ir.Operation, results: Sequence[ir.Value]) -> None:
    """Return `results`, behind all that the block has, and set the type that follows.

    A return that is there already goes, and the new one stands in its place.
    """
    block = function.regions[0].blocks[0]
    end = block.operations[-1].operation if len(block.operations) else None
    if end is not None and end.name == RETURN:
        with ir.InsertionPoint(end), end.location:
            return_(results)
        end.erase()
    else:
        with ir.InsertionPoint(block):
            return_(results)
    retype(function)


def return_(results: Sequence[ir.Value]) -> None:
    """`func.return` of these values."""
    ir.Operation.create(RETURN, operands=list(results))


def retype(function: ir.Operation) -> None:
    """Set the type that follows from the function's arguments and its return."""
    block = function.regions[0].blocks[0]
    given, returned = block.arguments, block.operations[-1].operation.operands
    types = [v.type for v in given], [v.type for v in returned]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
