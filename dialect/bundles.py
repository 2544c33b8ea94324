"""Several values of several types where an op takes only values of one.

IRDL gives all values of a variadic group one type. So an op with any number of
operands takes either values of one type, or one tuple of them all:

    %t = builtin.unrealized_conversion_cast %w, %b
        : tensor<4x4xf32>, tensor<4xf32> to tuple<tensor<4x4xf32>, tensor<4xf32>>
    %s = "pcp.param_sync"(%t) ...

`pack` and `unpack` write the casts only where types differ, and `canonicalize`
removes a pack that is unpacked again.
"""

from collections.abc import Sequence

from pcp.dialect.base import require
from pcp.dialect.bindings import ir

CAST = "builtin.unrealized_conversion_cast"


def types_of(values: Sequence[ir.Value]) -> list[ir.Type]:
    """The types an op's operands or results stand for, tuples taken apart."""
    types = [value.type for value in values]
    if len(types) == 1:
        return elements(types[0])
    for type_ in types:
        require(
            type_ == types[0],
            f"has values of {types[0]} and {type_}; values of several types are "
            f"written as one tuple, with {CAST}",
        )
    return types


def elements(type_: ir.Type) -> list[ir.Type]:
    """The elements of a tuple type; of any other type itself."""
    if not isinstance(type_, ir.TupleType):
        return [type_]
    tuple_type = ir.TupleType(type_)
    return [tuple_type.get_type(i) for i in range(tuple_type.num_types)]


def bundled(types: Sequence[ir.Type]) -> list[ir.Type]:
    """The types as an op with any number of values has them."""
    if len(set(types)) <= 1:
        return list(types)
    return [ir.TupleType.get_tuple(list(types))]


def pack(values: Sequence[ir.Value]) -> list[ir.Value]:
    """The values as an op with any number of operands takes them."""
    types = [value.type for value in values]
    if bundled(types) == types:
        return list(values)
    cast = ir.Operation.create(CAST, results=bundled(types), operands=list(values))
    return list(cast.results)


def unpack(values: Sequence[ir.Value]) -> list[ir.Value]:
    """The single values behind an op's results or a region's arguments."""
    if len(values) != 1 or not isinstance(values[0].type, ir.TupleType):
        return list(values)
    types = elements(values[0].type)
    cast = ir.Operation.create(CAST, results=types, operands=list(values))
    return list(cast.results)


def singles(values: Sequence[ir.Value]) -> list[ir.Value]:
    """As `unpack`, but what was packed just before is what it was made of."""
    if len(values) == 1 and isinstance(values[0].type, ir.TupleType):
        maker = values[0].owner
        if not isinstance(maker, ir.Block) and maker.operation.name == CAST:
            return list(maker.operation.operands)
    return unpack(values)


def stand_in(old: Sequence[ir.Value], new: Sequence[ir.Value]) -> None:
    """Put single values in the place of those that stand for them, as an op has them.

    Casts that unpack a tuple of them go; what else uses it gets a new one.
    """
    if len(old) != 1 or not isinstance(old[0].type, ir.TupleType):
        for value, single in zip(old, new, strict=True):
            value.replace_all_uses_with(single)
        return
    for user in [use.owner.operation for use in old[0].uses]:
        if user.name == CAST and len(user.results) == len(new):
            for value, single in zip(user.results, new, strict=True):
                value.replace_all_uses_with(single)
            user.erase()
    if any(True for _ in old[0].uses):
        [packed] = pack(new)
        old[0].replace_all_uses_with(packed)


def drop_casts(values: Sequence[ir.Value]) -> None:
    """Erase the casts that made `values`, where nothing uses them."""
    for value in values:
        maker = value.owner
        if not isinstance(maker, ir.Block) and maker.operation.name == CAST:
            if not any(True for result in maker.operation.results for _ in result.uses):
                maker.operation.erase()
