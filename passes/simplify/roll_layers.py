"""pcp-roll-layers: equal layers of a model as one loop over stacked parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.roles import OF_THE_MODEL
from pcp.errors import PassError
from pcp.passes.analysis import cost
from pcp.passes.core import functions, stacks
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, is_pure, operations
from pcp.passes.simplify.repeated_blocks import Blocks, find, operands

Value = ir.Value


@dataclass(frozen=True)
class RollLayers(Pass):
    """Roll equal blocks of ops into a loop, so that a program does not grow with depth.

    Runs on the entry of `func`, in front of the derivative, which goes through the loop
    and keeps for each layer what it needs of it. Blocks are equal as
    `repeated_blocks` says, and there are at least `layers` of them. Parameters stay
    arguments of their own, by their names: the program stacks those that differ between
    blocks once a step, and each turn of the loop reads its own. Ops that no parameter
    reaches (masks, positions) move to the front first.

    With `overhead` a loop stays only where copying parameters, to the stack and their
    gradients back, is at most that part of the blocks' work, as `analysis.cost` has it:
    it is little where many tokens pass through a layer in a step.

    Before, with layers=2, and after:

        %1 = stablehlo.dot_general %x, %w0, ...
        %2 = stablehlo.tanh %1
        %3 = stablehlo.dot_general %2, %w1, ...
        %4 = stablehlo.tanh %3

        %w = stablehlo.concatenate %w0, %w1, dim = 0     (each as tensor<1x...>)
        %4 = stablehlo.while(%i = 0, %h = %x) cond { %i < 2 } do {
          %own = stablehlo.dynamic_slice %w, %i, ...
          %1 = stablehlo.dot_general %h, %own, ...
          %2 = stablehlo.tanh %1
          stablehlo.return %i + 1, %2
        }
    """

    name = "pcp-roll-layers"
    func: str = "main"
    layers: int = 4
    overhead: float = 0.0

    def run(self, module: ir.Module) -> None:
        """Roll what repeats most, and again what is left."""
        if self.layers < 2:
            raise PassError(
                f"{self.name}: layers={self.layers}: a loop has two or more"
            )
        function = functions.find(module, self.func)
        if function is None:
            raise PassError(f"{self.name}: the module has no function @{self.func}")
        with module.context, function.location:
            roll_layers(function, self.layers, self.overhead)


def roll_layers(function: ir.Operation, least: int = 4, overhead: float = 0.0) -> int:
    """Roll blocks of a function; how many loops there are."""
    hoist(function)
    loops = 0
    while (blocks := find(_body(function), least)) is not None:
        if overhead and _copied(blocks) > overhead * _work(_body(function), blocks):
            break
        _roll(_body(function), blocks)
        loops += 1
    return loops


def _copied(blocks: Blocks) -> float:
    """The work of stacking and slicing rows, and their gradients: each twice."""
    moved = sum(cost.size_bytes(x) for row in blocks.rows for x in row)
    return cost.FLOPS_PER_BYTE * 8 * moved


def _work(ops: Sequence[ir.Operation], blocks: Blocks) -> float:
    """Of the blocks and their derivative, which is twice as much."""
    template = ops[blocks.start : blocks.start + blocks.length]
    return 3 * blocks.count * sum(map(cost.work, template))


def _body(function: ir.Operation) -> list[ir.Operation]:
    *ops, _ = [view.operation for view in functions.entry(function).operations]
    return ops


def hoist(function: ir.Operation) -> None:
    """Move to the front what follows from constants and from data alone.

    CSE leaves such ops in the first layer that uses them.
    """
    entry = functions.entry(function)
    said = functions.argument_attributes(function)
    free = {
        argument
        for argument, attributes in zip(entry.arguments, said, strict=True)
        if functions.string(attributes, functions.ROLE) not in OF_THE_MODEL
    }
    first: ir.Operation | None = None
    for op in _body(function):
        if is_pure(op) and all(v in free for v in operands(op)):
            free |= set(op.results)
            if first is not None:
                op.move_before(first)
        elif first is None:
            first = op


def _roll(ops: Sequence[ir.Operation], blocks: Blocks) -> None:
    """Put the loop in the place of the blocks."""
    template = ops[blocks.start : blocks.start + blocks.length]
    old = ops[blocks.start : blocks.start + blocks.ops]
    ends = dict(blocks.results)
    with before(old[0]):
        stacked = [stacks.stack(row) for row in blocks.rows]
        carries = [*blocks.carries]
        for place, value in blocks.results:
            if place not in [source for source, _ in carries]:
                carries.append((place, hlo.zeros(value.type)))
        loop = _loop(blocks.count, [first for _, first in carries])
        _fill(loop, blocks, template, [source for source, _ in carries], stacked)
    at = {source: i for i, (source, _) in enumerate(carries, 1)}
    for place, value in ends.items():
        value.replace_all_uses_with(loop.results[at[place]])
    for op in reversed(old):
        op.erase()


def _loop(count: int, starts: Sequence[Value]) -> ir.Operation:
    """A loop of so many turns over these carries, its body still empty."""
    i32 = hlo.tensor((), ir.IntegerType.get_signless(32))
    values = [hlo.constant(0, i32), *starts]
    types = [x.type for x in values]
    loop = ir.Operation.create(
        "stablehlo.while", operands=values, results=types, regions=2
    )
    locations = [loop.location] * len(types)
    for region in loop.regions:
        region.blocks.append(*types, arg_locs=locations)
    condition = loop.regions[0].blocks[0]
    with ir.InsertionPoint(condition):
        i = condition.arguments[0]
        _return([hlo.compare("LT", i, hlo.constant(count, i32), "SIGNED")])
    return loop


def _fill(
    loop: ir.Operation,
    blocks: Blocks,
    template: Sequence[ir.Operation],
    sources: Sequence[tuple[int, int]],
    stacked: Sequence[Value],
) -> None:
    """Copy a block into the loop's body."""
    body = loop.regions[1].blocks[0]
    with ir.InsertionPoint(body):
        i, *carried = body.arguments
        rows = [_own(stack, i) for stack in stacked]
        made: list[ir.Operation] = []
        for number, op in enumerate(template):
            copy = op.clone()
            for slot, value in enumerate(operands(op)):
                key = (number, slot)
                if key in blocks.inside:
                    at, result = blocks.inside[key]
                    new = made[at].results[result]
                elif key in blocks.carried:
                    new = carried[blocks.carried[key]]
                elif key in blocks.outer:
                    new = rows[blocks.outer[key]]
                else:
                    continue
                _put(copy, slot, value, new)
            made.append(copy)
        one = hlo.constant_like(i, 1)
        _return([hlo.add(i, one), *(made[at].results[r] for at, r in sources)])


def _put(op: ir.Operation, slot: int, old: Value, new: Value) -> None:
    """Replace an operand, or what the regions of an op use from outside."""
    if slot < len(op.operands):
        op.operands[slot] = new
        return
    for inner in operations(op):
        for i, value in enumerate(inner.operands):
            if value == old:
                inner.operands[i] = new


def _own(stack: Value, i: Value) -> Value:
    """Row i of a stack."""
    _, *shape = hlo.shape_of(stack)
    zero = hlo.constant_like(i, 0)
    row = hlo.dynamic_slice(stack, [i, *[zero] * len(shape)], [1, *shape])
    return hlo.reshape(row, shape)


def _return(values: Sequence[Value]) -> None:
    ir.Operation.create("stablehlo.return", operands=list(values))
