"""pcp-keep-carries: a loop fills a stack where the stack lies.

IREE 3.13 does not know on which device a loop's carries are, and copies each of them
to "its" device in every round: a stack of n rows costs n times n rows. What begins a
carry can say where it is (`flow.tensor.transfer`, to the only device): then IREE copies
no more than what it takes to be read later. It errs there in two ways: equal constants,
or one value that begins two carries, are one buffer; and what is written over is not
held up by those who read it in another submission. So this is said of stacks only that
`in_place` finds: nobody reads what is written over, and as every row is written, each
can begin as memory of its own with no numbers in it.
"""

from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis.in_place import Stack, stacks
from pcp.passes.core import constants
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before

Value = ir.Value

_MEMORY = "flow.tensor.alloca"
TRANSFER = "flow.tensor.transfer"
"""In the text of every program that has such a stack."""
#: The device that IREE makes of `hal.device.targets`, of which a program has one.
_DEVICE = "#hal.device.promise<@__device_0>"


@dataclass(frozen=True)
class KeepCarries(Pass):
    """Let loops fill their stacks in place.

    Such a stack is a carry of a loop of known length, or of such loops in one another,
    of which each round writes one row, another one each time, and nothing else; what a
    round adds to a row of what the loop began with reads it there. Nothing else in the
    module may write over what a loop or a branch hands on, or else all stays as it is.

    Before:

        %r:2 = stablehlo.while(%i = %c0, %stack = %zeros) ... do {
          %new = stablehlo.dynamic_update_slice %stack, %row, %i, ...

    After, in short, in generic form:

        %memory = flow.tensor.alloca : tensor<12x64xf32>
        %kept = flow.tensor.transfer %memory to #hal.device.promise<@__device_0>
        %r:2 = stablehlo.while(%i = %c0, %stack = %kept) ... do {
          %new = stablehlo.dynamic_update_slice %stack, %row, %i, ...
    """

    name = "pcp-keep-carries"

    def run(self, module: ir.Module) -> None:
        """Keep what may be kept."""
        with module.context:
            module.context.allow_unregistered_dialects = True
            for stack in stacks(module.operation):
                _keep(stack)


def _keep(stack: Stack) -> None:
    """Begin a stack as memory of its own; read old rows where they were."""
    (loop, place), *_ = stack.places
    start = loop.operands[place]
    value = constants.splat(start)
    for op in stack.read_before:
        if value is None:
            op.operands[0] = start
            continue
        with before(op):
            op.results[0].replace_all_uses_with(hlo.constant(value, op.result.type))
        op.erase()
    with before(loop):
        memory = _made(_MEMORY, [], start.type)
        device = {"target": ir.Attribute.parse(_DEVICE)}
        loop.operands[place] = _made(TRANSFER, [memory], memory.type, **device)


def _made(
    name: str, operands: list[Value], type_: ir.Type, **attributes: ir.Attribute
) -> Value:
    return ir.Operation.create(
        name, operands=operands, results=[type_], attributes=attributes
    ).result
