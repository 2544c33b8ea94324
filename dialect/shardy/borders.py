"""The border of a `jax.shard_map` body: how values go into it, and out of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.dialect.shardy import manual
from pcp.dialect.shardy.reader import Reader, annotated
from pcp.dialect.shardy.text import Parsed

#: What stands for a value beyond a border: by its sharding there, and its type.
Crossing = Callable[[Reader, ir.Value, Parsed, ir.Type], ir.Value]


@dataclass(frozen=True)
class Border:
    """How values go into a body, and out of it."""

    into: Crossing
    out: Crossing

    def cross(
        self,
        reader: Reader,
        op: ir.Operation,
        targets: Sequence[ir.Value],
        values: Sequence[ir.Value],
        shardings: Sequence[Parsed],
    ) -> None:
        """Put `values` in the place of arguments or results; a token as it is."""
        for target, value, parsed in zip(targets, values, shardings, strict=True):
            if isinstance(value.type, ir.RankedTensorType):
                is_in = isinstance(target, ir.BlockArgument)
                crossing = self.into if is_in else self.out
                with ir.InsertionPoint(op), value.location:
                    value = crossing(reader, value, parsed, target.type)
            target.replace_all_uses_with(value)


def _laid(reader: Reader, value: ir.Value, parsed: Parsed, _: ir.Type) -> ir.Value:
    return reader.constrained(value, parsed)


def _part(reader: Reader, value: ir.Value, parsed: Parsed, type_: ir.Type) -> ir.Value:
    value = annotated("constraint", value, parsed)
    return annotated("to_part", value, parsed, type_)


def _joined(
    reader: Reader, value: ir.Value, parsed: Parsed, type_: ir.Type
) -> ir.Value:
    value = annotated("from_part", value, parsed, type_)
    return annotated("constraint", value, parsed)


def _own_part(reader: Reader, value: ir.Value, parsed: Parsed, _: ir.Type) -> ir.Value:
    dims = [dim.axes for dim in parsed.dims]
    return manual.own_part(value, dims, reader.axes_of(parsed.mesh))


def _gathered(reader: Reader, value: ir.Value, parsed: Parsed, _: ir.Type) -> ir.Value:
    dims = [dim.axes for dim in parsed.dims]
    return manual.whole(value, dims, reader.axes_of(parsed.mesh))


#: Of a body of whole tensors; of one of parts; and of one in a body of parts, where a
#: member has all of each value along the axes that are left.
WHOLE = Border(_laid, _laid)
PARTS = Border(_part, _joined)
NESTED = Border(_own_part, _gathered)
