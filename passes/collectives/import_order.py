"""Keep IREE from calling an import whose operand is not on its way yet.

IREE lets an op write its result into the place that a later op copies it to, a part
of a `concatenate`. For that it moves what makes the other parts in front of the op,
as far as values depend on each other: calls of imports too, but not what fills their
fences, since that gives no value. A fence may then be filled only behind a wait for
what the import gives: the program hangs.

A part is held in a place of its own where that could happen: where other parts need
an import that it does not need itself.

Before:

    %a = "util.call"(%x) {callee = @pcp_rt.all_reduce_0_f32_4}
    %y = stablehlo.concatenate %a, %b, dim = 0

After:

    %a = "util.call"(%x) {callee = @pcp_rt.all_reduce_0_f32_4}
    %c = stablehlo.optimization_barrier %b
    %y = stablehlo.concatenate %a, %c, dim = 0
"""

from collections.abc import Iterator

from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import HOLD, before, functions

CALL = "util.call"

#: Imports as the bits of an integer: those that a value needs, directly or not.
Needs = dict[ir.Value, int]


def keep_import_order(module: ir.Module) -> int:
    """Hold what IREE would move imports for; returns how many values."""
    found = [_keep(block) for f in functions(module) for block in _blocks(f)]
    return sum(found)


def _blocks(op: ir.Operation) -> Iterator[ir.Block]:
    for region in op.regions:
        for block in region.blocks:
            yield block
            for inner in block.operations:
                yield from _blocks(inner.operation)


def _keep(block: ir.Block) -> int:
    """One block; what is made outside stays where it is."""
    needs: Needs = {}
    calls = held = 0
    for view in list(block.operations):
        op = view.operation
        for index, others in _placed(op, needs):
            if others & ~needs.get(op.operands[index], 0):
                _hold(op, index)
                held += 1
        found = 0
        for value in _used(op):
            found |= needs.get(value, 0)
        for _ in _calls(op):
            found |= 1 << calls
            calls += 1
        for result in op.results:
            needs[result] = found
    return held


def _placed(op: ir.Operation, needs: Needs) -> Iterator[tuple[int, int]]:
    """Which operands are copied into a place, and what that place needs by then."""
    if op.name == "stablehlo.dynamic_update_slice":
        yield 1, needs.get(op.operands[0], 0)
    elif op.name == "stablehlo.concatenate":
        so_far = 0
        for index, value in enumerate(op.operands):
            yield index, so_far
            so_far |= needs.get(value, 0)


def _hold(op: ir.Operation, index: int) -> None:
    value = op.operands[index]
    with before(op):
        made = ir.Operation.create(HOLD, operands=[value], results=[value.type])
    op.operands[index] = made.results[0]


def _used(op: ir.Operation) -> Iterator[ir.Value]:
    yield from op.operands
    for block in _blocks(op):
        for inner in block.operations:
            yield from inner.operation.operands


def _calls(op: ir.Operation) -> Iterator[ir.Operation]:
    if op.name == CALL:
        yield op
    for block in _blocks(op):
        for inner in block.operations:
            if inner.operation.name == CALL:
                yield inner.operation
