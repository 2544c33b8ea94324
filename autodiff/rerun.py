"""The ops of a region, run again from other arguments than the first time.

The reverse pass of a branch, and of a loop that keeps less than all, computes
forward values anew. That is right only for ops that give the same again.
"""

from collections.abc import Iterator, Sequence

from pcp.autodiff import functions
from pcp.autodiff.expansion import fresh_channel
from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.context import location_string
from pcp.errors import MissingRule

Value = ir.Value

#: Ops that give something else, or do something twice, when they run twice.
_ONCE = frozenset({"rng", "infeed", "outfeed", "send", "recv"})
#: What a function's own derivative rule runs in the place of its call.
_RULES = {"pcp.custom_vjp": ("forward",), "pcp.custom_jvp": ("jvp",)}


def run_again(
    holder: ir.Operation, region: int, arguments: Sequence[Value]
) -> tuple[list[Value], list[ir.Operation]]:
    """Copy a region's ops to the insertion point, its arguments replaced.

    Returns what its terminator returns, and the ops, in order. A loop's body from
    a stored carry is `run_again(loop, 1, carry)`. Collectives get channels of
    their own. Raises `MissingRule` at an op that must not run twice.
    """
    if (op := once_only(holder.regions[region])) is not None:
        where = location_string(op.location)
        raise MissingRule(
            f"{where}: {op.name}: the derivative of the {holder.name} around it runs "
            f"it a second time, and {_advice(op)}, or move it out"
        )
    husk = holder.clone().operation
    block = husk.regions[region].blocks[0]
    returned, ops = functions.splice(block, arguments, before=husk)
    husk.erase()
    for op in ops:
        _rename_channels(op, holder)
    return returned, ops


def once_only(region: ir.Region) -> ir.Operation | None:
    """An op inside, at any depth, that must not run a second time."""
    return next((op for op in _inside(region) if _is_once_only(op, set())), None)


def _is_once_only(op: ir.Operation, seen: set[str]) -> bool:
    """`seen` are functions that calls came through, whose ops are looked at already."""
    if op.name == "stablehlo.custom_call":
        effect = hlo.attribute(op, "has_side_effect")
        return effect is not None and ir.BoolAttr(effect).value
    if op.name in functions.CALLS:
        return _acts(_module_of(op), functions.callee(op), seen)
    return op.name.removeprefix("stablehlo.") in _ONCE


def _acts(module: ir.Operation, name: str, seen: set[str]) -> bool:
    """Whether a function, or the derivative rule it has, may act when it is called."""
    if name in seen:
        return False
    seen.add(name)
    for view in module.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == "func.func" and functions.symbol(op) == name:
            if functions.may_have_effects(op):
                return True
            if any(_is_once_only(inner, seen) for inner in _inside(op.regions[0])):
                return True
        elif op.name in _RULES and _named(op, "primal") == name:
            parts = [_named(op, part) for part in _RULES[op.name]]
            if any(_acts(module, part, seen) for part in parts):
                return True
    return False


def _named(op: ir.Operation, role: str) -> str:
    return ir.FlatSymbolRefAttr(op.attributes[role]).value


def _module_of(op: ir.Operation) -> ir.Operation:
    while op.name != "builtin.module":
        op = op.parent.operation
    return op


def _advice(op: ir.Operation) -> str:
    if op.name in functions.CALLS:
        return (
            f"@{functions.callee(op)} may have effects; mark what has none "
            "`nosideeffects` where it is declared"
        )
    return (
        "it would not give the same; use stablehlo.rng_bit_generator for random numbers"
    )


def _inside(region: ir.Region) -> Iterator[ir.Operation]:
    for block in region.blocks:
        for op in block.operations:
            yield op.operation
            for nested in op.operation.regions:
                yield from _inside(nested)


def _rename_channels(op: ir.Operation, holder: ir.Operation) -> None:
    inner = [i for region in op.regions for i in _inside(region)]
    for each in (op, *inner):
        if "channel_handle" in each.attributes:
            old = stablehlo.ChannelHandle(each.attributes["channel_handle"])
            new = stablehlo.ChannelHandle.get(fresh_channel(holder), old.channel_type)
            each.attributes["channel_handle"] = new


def erase_unused(block: ir.Block, since: int = 0) -> None:
    """Drop ops of a block from number `since` on that nothing uses.

    For what `run_again` copies and rules emit, which has no effects.
    """
    *ops, _ = [op.operation for op in block.operations]
    for op in reversed(ops[since:]):
        if not any(next(iter(result.uses), None) for result in op.results):
            op.erase()
