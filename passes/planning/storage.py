"""Which values of a program get memory of their own, and how much is held at most.

A compiler joins ops: what maps element by element is computed where it is read. So
memory goes to what is contracted, reduced, gathered or sent, and to maps that more
than one op reads. Constants, broadcasts and reshapes hold nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pcp.dialect.attributes import Future
from pcp.dialect.bindings import ir
from pcp.passes.elementwise import ELEMENTWISE
from pcp.passes.pipeline.work import size_bytes
from pcp.passes.rewriting import HOLD
from pcp.passes.sharding.flow import CONTROL_FLOW, block_of, returned

Value = ir.Value

#: Another look at what is stored already.
VIEWS = frozenset({"stablehlo.reshape", "pcp.wait", HOLD})
#: Made where they are read.
FREE = frozenset({"stablehlo.constant", "stablehlo.iota", "arith.constant"})
#: Computed where they are read, whoever reads them.
SPREAD = frozenset({"stablehlo.broadcast_in_dim"})
#: Joined with the one op that reads them.
JOINED = ELEMENTWISE | {"stablehlo.transpose", "stablehlo.slice", "stablehlo.reverse"}
#: What reads a joined map element by element as well.
READERS = JOINED | SPREAD | VIEWS | {"stablehlo.reduce"}
#: What maps can be appended to.
ROOTS = frozenset(
    {"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.reduce"}
)


@dataclass
class Storage:
    """Of one function's block: what is stored, and what each stored value rests on."""

    block: ir.Block
    stored: set[Value] = field(default_factory=set)
    #: For a value that is not stored, the stored ones that it is computed from.
    sources: dict[Value, tuple[Value, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, block: ir.Block) -> "Storage":
        """Decide for every value of the block."""
        storage = cls(block, set(block.arguments))
        for view in block.operations:
            op = view.operation
            for i, result in enumerate(op.results):
                if _is_stored(op, result):
                    storage.stored.add(result)
                elif op.name == HOLD:
                    storage.sources[result] = storage.behind([op.operands[i]])
                else:
                    storage.sources[result] = storage.read_by(op)
        return storage

    def read_by(self, op: ir.Operation) -> tuple[Value, ...]:
        """The stored values that an op reads, directly or through maps."""
        operands = [*_operands(op)]
        if op.name == "pcp.wait":  # what is under way is read until it is over
            operands += op.operands[0].owner.operands
        return self.behind(operands)

    def behind(self, operands: Iterable[Value]) -> tuple[Value, ...]:
        """The stored values that some values are, or are computed from."""
        found: dict[Value, None] = {}
        for operand in operands:
            if operand in self.stored:
                found[operand] = None
            else:
                found.update(dict.fromkeys(self.sources.get(operand, ())))
        return tuple(found)


def _operands(op: ir.Operation) -> Iterator[Value]:
    """Those of the op, and what the control flow in it reads from outside."""
    yield from op.operands
    if op.name in CONTROL_FLOW:
        for region in op.regions:
            for view in region.blocks[0].operations:
                yield from _operands(view.operation)


def _is_stored(op: ir.Operation, value: Value) -> bool:
    if op.name in FREE or op.name in SPREAD or op.name in VIEWS:
        return False
    users = list({use.owner.operation.name: None for use in value.uses})
    count = sum(1 for _ in value.uses)
    if op.name in JOINED:
        if _is_small_map(op):
            return False
        return count > 1 or any(user not in READERS for user in users)
    if op.name in ROOTS and count == 1:
        return users[0] not in ELEMENTWISE
    return True


def _is_small_map(op: ir.Operation) -> bool:
    """A map of constants and broadcasts alone: a mask, a scale."""
    return all(
        not isinstance(v.owner, ir.Block)
        and (v.owner.name in FREE or v.owner.name in SPREAD)
        for v in op.operands
    )


def value_bytes(value: Value) -> int:
    """Bytes of a tensor, or of what a started collective will give."""
    if not isinstance(value.type, Future):
        return size_bytes(value)
    inner = block_of(value.owner, 0)
    return sum(size_bytes(v) for v in returned(inner).operands)


def temporary_bytes(
    block: ir.Block, placed: Iterable[Value] = (), lasting: Iterable[Value] = ()
) -> int:
    """The most bytes held at once besides the arguments.

    `placed` values take the place of arguments; `lasting` ones are held to the end.
    So is what goes over the wire: IREE leaves what it exports to the end of the call.
    """
    storage = Storage.read(block)
    ops = [view.operation for view in block.operations]
    last: dict[Value, int] = {}
    for i, op in enumerate(ops):
        for value in storage.read_by(op):
            last[value] = i
    sent = [v for op in ops if _sends(op) for v in storage.read_by(op)]
    last |= dict.fromkeys([*lasting, *sent], len(ops) - 1)
    ends: dict[int, int] = {}
    elsewhere = {*block.arguments, *placed}
    for value, i in last.items():
        if value not in elsewhere:
            ends[i] = ends.get(i, 0) + value_bytes(value)
    held = most = 0
    for i, op in enumerate(ops):
        new = [r for r in op.results if r in storage.stored and r not in elsewhere]
        held += sum(map(value_bytes, new))
        inner = max((_inner(region) for region in _bodies(op)), default=0)
        most = max(most, held + inner)
        held -= ends.get(i, 0)
    return most


def _sends(op: ir.Operation) -> bool:
    """Whether its operands go to other devices, at once or while work goes on."""
    return op.name in ("pcp.start", "pcp.send") or exchanges(op)


def exchanges(op: ir.Operation) -> bool:
    """Whether members along axes of a mesh do it together."""
    return op.name.startswith("pcp.") and "axes" in op.attributes


def _bodies(op: ir.Operation) -> Iterator[ir.Block]:
    if op.name in CONTROL_FLOW:
        for region in op.regions:
            yield region.blocks[0]


def _inner(block: ir.Block) -> int:
    """What one round of a loop, or one branch, holds besides."""
    return temporary_bytes(block)
