"""A function as numbered values, and the memory that an order of its ops needs.

The model of memory is that of a compiler that fuses as IREE does: constants,
broadcasts and other ops without work of their own live inside their readers, and so
does an elementwise value with one reader that is elementwise or a reduction. Every
other value has a buffer from its definition to its last reader. Arguments belong to
the caller and count for nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pcp.autodiff.activity import captures
from pcp.autodiff.cost import flops, size
from pcp.dialect.bindings import ir
from pcp.passes.elementwise import ELEMENTWISE
from pcp.passes.rewriting import is_pure

#: Never in memory: computed where it is read.
_VIRTUAL = frozenset(
    {"stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.iota"}
)
#: Another name of its operand's buffer.
_ALIAS = frozenset(
    {"pcp.stop_gradient", "stablehlo.optimization_barrier", "stablehlo.reshape"}
)
_FUSING = ELEMENTWISE | {"stablehlo.reduce", "stablehlo.broadcast_in_dim"}


@dataclass(frozen=True)
class Node:
    """One op: what it reads (its regions' captures too) and makes, by number."""

    op: ir.Operation
    operands: tuple[int, ...]
    results: tuple[int, ...]
    flops: int
    pure: bool


@dataclass
class Graph:
    """A block's ops in order; `sizes` in bytes, `returned` by number."""

    nodes: list[Node] = field(default_factory=list)
    values: list[ir.Value] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    returned: tuple[int, ...] = ()
    arguments: int = 0

    @property
    def producer(self) -> dict[int, int]:
        """The node that makes each value; arguments have none."""
        return {r: i for i, node in enumerate(self.nodes) for r in node.results}


def graph(block: ir.Block) -> Graph:
    """Number the values of a function's body, arguments first."""
    found = Graph()
    number: dict[ir.Value, int] = {}

    def add(value: ir.Value) -> int:
        number[value] = len(found.values)
        found.values.append(value)
        found.sizes.append(size(value))
        return number[value]

    for argument in block.arguments:
        add(argument)
    found.arguments = len(found.values)
    *ops, end = [view.operation for view in block.operations]
    for op in ops:
        read = [*op.operands, *(captures(op) if len(op.regions) else ())]
        operands = tuple(dict.fromkeys(number[v] for v in read))
        results = tuple(add(r) for r in op.results)
        found.nodes.append(Node(op, operands, results, flops(op), is_pure(op)))
    found.returned = tuple(number[v] for v in end.operands)
    return found


#: The node of a step that is no op of the graph: an elementwise op of one operand.
GUARD = -1


@dataclass(frozen=True)
class Step:
    """A node run with these values; a clone has results of its own."""

    node: int
    operands: tuple[int, ...]
    results: tuple[int, ...]


def peak(whole: Graph, steps: Sequence[Step], sizes: Sequence[int]) -> int:
    """The most bytes that are live at once while `steps` run in this order."""
    buffers = _buffers(whole, steps)
    last: dict[int, int] = {}
    for at, step in enumerate(steps):
        for value in (*step.operands, *step.results):
            last.update(dict.fromkeys(buffers[value], at))
    for value in whole.returned:
        last.update(dict.fromkeys(buffers[value], len(steps)))
    ends: dict[int, list[int]] = {}
    for buffer, at in last.items():
        ends.setdefault(at, []).append(buffer)
    live = most = 0
    for at, step in enumerate(steps):
        live += sum(sizes[r] for r in step.results if buffers[r] == (r,))
        most = max(most, live)
        live -= sum(sizes[b] for b in ends.get(at, ()) if b >= whole.arguments)
    return most


def _buffers(whole: Graph, steps: Sequence[Step]) -> dict[int, tuple[int, ...]]:
    """The buffers that a reader of each value reads: its own, or its operands'."""
    readers = _readers(steps)
    returned = set(whole.returned)
    buffers: dict[int, tuple[int, ...]] = {i: (i,) for i in range(whole.arguments)}
    for step in steps:
        name = _name(whole, step)
        through = (v for x in step.operands for v in buffers[x])
        for result in step.results:
            own = result in returned or not (
                name in _VIRTUAL
                or name in _ALIAS
                or (name in ELEMENTWISE and _fuses(whole, readers.get(result, ())))
            )
            buffers[result] = (result,) if own else tuple(dict.fromkeys(through))
    return buffers


def _fuses(whole: Graph, readers: Iterable[Step]) -> bool:
    listed = list(readers)
    return len(listed) == 1 and _name(whole, listed[0]) in _FUSING


def _name(whole: Graph, step: Step) -> str:
    return "stablehlo.select" if step.node == GUARD else whole.nodes[step.node].op.name


def _readers(steps: Sequence[Step]) -> dict[int, list[Step]]:
    found: dict[int, list[Step]] = {}
    for step in steps:
        for value in step.operands:
            found.setdefault(value, []).append(step)
    return found
