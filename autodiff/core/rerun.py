"""The ops of a region, run again from other arguments than the first time.

The reverse pass of a branch, and of a loop that keeps less than all, computes
forward values anew. That is right only for ops that give the same again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pcp.autodiff.core import functions
from pcp.autodiff.core.expansion import fresh_channel
from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.diagnostics import location_string
from pcp.errors import MissingRule
from pcp.passes.core.rewriting import splice

Value = ir.Value

#: Ops that give something else, or do something twice, when they run twice.
_ONCE = frozenset({"rng", "infeed", "outfeed", "send", "recv"})


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
    returned, ops = splice(block, arguments, before=husk)
    husk.erase()
    for op in ops:
        _rename_channels(op, holder)
    return returned, ops


def once_only(region: ir.Region) -> ir.Operation | None:
    """An op inside, at any depth, that must not run a second time."""
    return _Search(region.owner.operation).first(region)


@dataclass
class _Search:
    """Through calls too; `seen` are functions that these came to, and are not again.

    It ends at the first op found, so of what is seen nothing acts.
    """

    root: ir.Operation
    seen: set[str] = field(default_factory=set)

    def first(self, region: ir.Region) -> ir.Operation | None:
        """The first op that must not run a second time."""
        return next((op for op in _inside(region) if self._is_once_only(op)), None)

    def _is_once_only(self, op: ir.Operation) -> bool:
        if op.name == "stablehlo.custom_call":
            effect = hlo.attribute(op, "has_side_effect")
            return effect is not None and ir.BoolAttr(effect).value
        if op.name in functions.CALLS:
            return self._acts(functions.callee(op))
        return op.name.removeprefix("stablehlo.") in _ONCE

    def _acts(self, name: str) -> bool:
        """Whether a function, or the rule it has, may act when it is called."""
        if name in self.seen:
            return False
        self.seen.add(name)
        function = self._functions.get(name)
        if function is not None and (
            functions.may_have_effects(function)
            or self.first(function.regions[0]) is not None
        ):
            return True
        return any(self._acts(part) for part in self._instead.get(name, ()))

    @cached_property
    def _functions(self) -> dict[str, ir.Operation]:
        return functions.functions(_module_of(self.root))

    @cached_property
    def _instead(self) -> dict[str, list[str]]:
        """What a function's own derivative rules run in the place of its call."""
        found: dict[str, list[str]] = {}
        for view in _module_of(self.root).regions[0].blocks[0].operations:
            if (op := view.operation).name in functions.RULES:
                first = [functions.named(op, r) for r in functions.RULES[op.name][:1]]
                found.setdefault(functions.named(op, "primal"), []).extend(first)
        return found


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
