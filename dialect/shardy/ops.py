"""Shardy's ops as pcp's: a rule for each."""

import re
from collections.abc import Callable

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.shardy import manual
from pcp.dialect.shardy.borders import NESTED, PARTS, WHOLE
from pcp.dialect.shardy.reader import Reader, annotated
from pcp.dialect.shardy.text import read_shardings


def _annotation(reader: Reader, op: ir.Operation) -> None:
    """`sdy.sharding_constraint`; `sdy.reshard` and Shardy's collectives."""
    is_constraint = op.name == "sdy.sharding_constraint"
    key = "sharding" if "sharding" in op.attributes else "out_sharding"
    parsed = reader.read(op, op.attributes[key])
    (value,) = op.operands
    with ir.InsertionPoint(op), op.location:
        if is_constraint:
            value = reader.constrained(value, parsed)
        else:
            value = annotated("reshard", value, parsed)
    op.results[0].replace_all_uses_with(value)
    op.erase()


#: As Shardy prints a direction, by name or as its number.
_DIRECTIONS = {
    **{"NONE": "none", "FORWARD": "fwd", "BACKWARD": "bwd", "BOTH": None},
    **{"0": "none", "1": "fwd", "2": "bwd", "3": None},
}


def _barrier(reader: Reader, op: ir.Operation) -> None:
    """`sdy.propagation_barrier`; one that lets both through says nothing."""
    said = str(op.attributes["allowed_direction"])
    found = re.findall(r"\b(?:[A-Z]+|\d)\b", said)
    if not found or found[0] not in _DIRECTIONS:
        reader.refuse(op, f"{said} is no direction that pcp knows")
    value, direction = op.operands[0], _DIRECTIONS[found[0]]
    if direction is not None:
        said = ir.StringAttr.get(direction)
        with ir.InsertionPoint(op), op.location:
            value = hlo.op(
                "pcp.barrier_prop", [value], [value.type], direction=said
            ).result
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _manual(reader: Reader, op: ir.Operation) -> None:
    """`jax.shard_map`: a body of whole tensors in place, any other as of parts."""
    block = op.regions[0].blocks[0]
    *_, end = (view.operation for view in block.operations)
    inside = [a.type for a in block.arguments] + [v.type for v in end.operands]
    outside = [v.type for v in op.operands] + [r.type for r in op.results]
    shardings = [
        reader.read_all(op, op.attributes[key], read_shardings)
        for key in ("in_shardings", "out_shardings")
    ]
    border = WHOLE
    if inside != outside or manual.knows_members(op):
        border = NESTED if manual.is_nested(op) else PARTS
        axes = reader.manual_axes(op)
        for parsed in (p for each in shardings for p in each if border is NESTED):
            cut = {axis for dim in parsed.dims for axis in dim.axes}
            if parsed.unreduced or not cut <= set(axes.sizes):
                reader.refuse(op, f"{parsed} in the body of another shard_map")
        for inner in manual.collectives_in(op):
            try:
                manual.convert(inner, axes)
            except ValueError as error:
                reader.refuse(inner, str(error))
        manual.drop_hints(op)
        own = manual.names(str(op.attributes["manual_axes"]))
        shardings = [[parsed.along(own) for parsed in each] for each in shardings]
    border.cross(reader, op, block.arguments, op.operands, shardings[0])
    for inner in block.operations:
        if inner.operation != end:
            inner.operation.move_before(op)
    border.cross(reader, op, op.results, end.operands, shardings[1])
    op.erase()


def _group(reader: Reader, op: ir.Operation) -> None:
    """`sdy.sharding_group`."""
    group = op.attributes["group_id"]
    with ir.InsertionPoint(op), op.location:
        hlo.op("pcp.sharding_group", op.operands, [], group=group)
    op.erase()


def _constant(reader: Reader, op: ir.Operation) -> None:
    """`sdy.constant` is StableHLO's, which Shardy's passes keep from folding."""
    value, type_ = op.attributes["value"], op.results[0].type
    with ir.InsertionPoint(op), op.location:
        made = hlo.op("constant", [], [type_], value=value)
    op.results[0].replace_all_uses_with(made.result)
    op.erase()


def _named(reader: Reader, op: ir.Operation) -> None:
    reader.refuse(op, "call a function instead of a named computation")


RULES: dict[str, Callable[[Reader, ir.Operation], None]] = {
    **dict.fromkeys(
        (
            f"sdy.{name}"
            for name in (
                *("all_gather", "all_reduce", "all_slice", "all_to_all"),
                *("collective_permute", "reduce_scatter", "replicated_to_unreduced"),
                *("reshard", "sharded_to_unreduced"),
            )
        ),
        _annotation,
    ),
    "sdy.constant": _constant,
    "sdy.manual_computation": _manual,
    "sdy.named_computation": _named,
    "sdy.propagation_barrier": _barrier,
    "sdy.sharding_constraint": _annotation,
    "sdy.sharding_group": _group,
}
