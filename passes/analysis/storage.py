"""Which values have memory of their own, in a block's ops in some order.

The model is that of a compiler that fuses as IREE does. What maps element by element
is computed where it is read; memory goes to what is contracted, reduced, gathered or
sent, and to maps that more than one op reads. Constants, broadcasts, reshapes and
rows of a stack hold nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pcp.dialect.attributes import Future
from pcp.dialect.bindings import ir
from pcp.dialect.hlo import element_type, shape_of
from pcp.passes.analysis.cost import flops, size_bytes, update_of
from pcp.passes.analysis.in_place import stacks_of
from pcp.passes.analysis.loops import invariant, is_scalar_integer
from pcp.passes.analysis.scratch import scratch_bytes
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.rewriting import HOLD, attributes, captures, ints, is_pure
from pcp.passes.core.walk import block_of, returned

Value = ir.Value

#: Another look at what is stored already.
VIEWS = frozenset({"pcp.stop_gradient", "stablehlo.reshape", "pcp.wait", HOLD})
#: That, too, where they take rows of a stack, which lie in memory as one piece.
_PIECES = frozenset({"stablehlo.dynamic_slice", "stablehlo.slice"})
#: Made where they are read, whoever reads them.
FREE = frozenset(
    {
        "arith.constant",
        "stablehlo.broadcast_in_dim",
        "stablehlo.constant",
        "stablehlo.iota",
    }
)
#: Element by element; those of CHLO are, too, once pcp-legalize has written them out.
MAPS = ELEMENTWISE | {f"chlo.{n}" for n in ("erf", "erfc", "erf_inv", "square")}
#: Joined with the one op that reads them. A slice that leaves gaps is copied first.
JOINED = MAPS | {"stablehlo.reverse", "stablehlo.transpose"}
#: Writes what it reads into a part of a tensor, element by element.
_INTO = "stablehlo.dynamic_update_slice"
#: What reads a joined map element by element as well.
READERS = JOINED | {_INTO, "stablehlo.slice"}
READERS |= {"stablehlo.broadcast_in_dim", "stablehlo.reduce"}
#: What maps can be appended to.
ROOTS = frozenset(
    {"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.reduce"}
)


# --- a block as numbered values ---


@dataclass(frozen=True)
class StorageNode:
    """One op: what it reads (its regions' captures too) and makes, by number."""

    op: ir.Operation
    operands: tuple[int, ...]
    results: tuple[int, ...]

    @cached_property
    def flops(self) -> int:
        """Operations of one run."""
        return flops(self.op)

    @cached_property
    def pure(self) -> bool:
        """Whether it does nothing but make its results."""
        return is_pure(self.op)

    @cached_property
    def is_view(self) -> bool:
        """Whether it is another look at its operands; so is a piece without gaps."""
        return self.op.name in VIEWS or _is_piece(self.op)

    @cached_property
    def scratch(self) -> int:
        """Bytes that it takes beside its results."""
        return scratch_bytes(self.op)

    @cached_property
    def is_mask(self) -> bool:
        """Whether it maps to truth values: IREE makes these again for readers."""
        return self.op.name in ELEMENTWISE and _is_truth(self.op.results[0])

    @cached_property
    def handed_on(self) -> dict[int, int]:
        """The results that are an operand again, each with the operand's place."""
        places = range(len(self.results))
        if self.op.name == "stablehlo.while":
            return {i: i for i in places if invariant(self.op)[i]}
        if self.is_view:
            return {i: i if self.op.name == HOLD else 0 for i in places}
        return {}

    @cached_property
    def replaced(self) -> dict[int, int]:
        """The results that can take an operand's memory, each with its place."""
        places = range(len(self.results))
        if self.op.name == "stablehlo.while":
            return {i: i for i in stacks_of(self.op)}
        return {i: i for i in places if update_of(self.op, i) is not None}

    @cached_property
    def carried(self) -> frozenset[int]:
        """The places of the operands that a loop begins with, and makes anew."""
        if self.op.name != "stablehlo.while":
            return frozenset()
        kept = self.handed_on.keys() | self.replaced.keys()
        return frozenset(range(len(self.results))) - kept


@dataclass
class StorageGraph:
    """A block's ops in order; `sizes` in bytes, `returned` by number.

    The `arguments` first values are the block's, then what it reads of its
    surroundings.
    """

    nodes: list[StorageNode]
    values: list[Value]
    sizes: list[int]
    returned: tuple[int, ...]
    arguments: int
    #: Bytes that the loops and branches hold inside, by node, once they are known.
    inside: dict[int, int] = field(default_factory=dict)

    @property
    def producer(self) -> dict[int, int]:
        """The node that makes each value; arguments have none."""
        return {r: i for i, node in enumerate(self.nodes) for r in node.results}

    @property
    def steps(self) -> list["StorageStep"]:
        """The block as it is."""
        return [StorageStep(i, n.operands, n.results) for i, n in enumerate(self.nodes)]


def graph(block: ir.Block) -> StorageGraph:
    """Number the values that a block's ops read and make."""
    *ops, end = [view.operation for view in block.operations]
    made = {result: None for op in ops for result in op.results}
    read = dict.fromkeys(v for op in (*ops, end) for v in _reads(op) if v not in made)
    values = list(dict.fromkeys([*block.arguments, *read, *made]))
    number = {value: i for i, value in enumerate(values)}

    def numbers(some: Iterable[Value]) -> tuple[int, ...]:
        return tuple(number[v] for v in some)

    return StorageGraph(
        [StorageNode(op, numbers(_reads(op)), numbers(op.results)) for op in ops],
        values,
        [value_bytes(v) for v in values],
        numbers(end.operands),
        len(values) - len(made),
    )


def _is_piece(op: ir.Operation) -> bool:
    """Whether an op takes rows of a stack, or a part of one row."""
    if op.name not in _PIECES:
        return False
    if op.name == "stablehlo.slice" and any(n != 1 for n in ints(op, "strides")):
        return False
    part, whole = shape_of(op.results[0]), shape_of(op.operands[0])
    rows = next((i for i, n in enumerate(part) if n != 1), len(part))
    return part[rows + 1 :] == whole[rows + 1 :]


def _is_truth(value: Value) -> bool:
    element = element_type(value)
    return isinstance(element, ir.IntegerType) and element.width == 1


def _reads(op: ir.Operation) -> Iterator[Value]:
    """Operands and captures; what is under way is read until it is waited for."""
    yield from op.operands
    if len(op.regions):
        yield from captures(op)
    if op.name == "pcp.wait":
        yield from op.operands[0].owner.operands


def value_bytes(value: Value) -> int:
    """Bytes of a tensor, or of what a started collective will give."""
    if not isinstance(value.type, Future):
        return size_bytes(value)
    inner = block_of(value.owner, 0)
    return sum(size_bytes(v) for v in returned(inner).operands)


#: The node of a step that is no op of the graph: an elementwise op of one operand.
GUARD = -1


@dataclass(frozen=True)
class StorageStep:
    """A node run with these values; a clone has results of its own."""

    node: int
    operands: tuple[int, ...]
    results: tuple[int, ...]


# --- what is stored ---

#: Stands for the reader of what a block returns.
_RETURN = "return"
#: A loop, as the reader of what it begins with.
_CARRY = "carry"


@dataclass
class Storage:
    """Of ops in an order: the stored values that each value is, or is computed from."""

    whole: StorageGraph
    steps: Sequence[StorageStep]
    behind: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: Products and reductions that the map behind them writes, and what maps them.
    mapped: set[int] = field(default_factory=set)

    @classmethod
    def read(cls, block: ir.Block) -> "Storage":
        """Of a block as it is."""
        whole = graph(block)
        return cls(whole, whole.steps)

    def __post_init__(self) -> None:
        free = set()
        for i, value in enumerate(self.whole.values[: self.whole.arguments]):
            self.behind[i] = () if _is_free(value) else (i,)
            free.update((i,) if _is_free(value) else ())
        readers = self._readers()
        filled: dict[object, int] = {}
        for step in self.steps:
            self._part_roots(step)
            if self.name(step) in FREE:
                free.update(step.results)
            for i, result in enumerate(step.results):
                if self._is_stored(step, i, readers.get(result, {}), free):
                    self.behind[result] = (self._first_equal(step, result, filled),)
                else:
                    self.behind[result] = self._sources(step, i)
                    if self.name(step) in ROOTS or self._maps_root(step):
                        self.mapped.add(result)

    @cached_property
    def stored(self) -> frozenset[Value]:
        """The block's values that have memory, arguments included."""
        values = enumerate(self.whole.values)
        return frozenset(v for i, v in values if self.behind.get(i) == (i,))

    def name(self, step: StorageStep) -> str:
        """Of a step's op."""
        guard = step.node == GUARD
        return "stablehlo.select" if guard else self.whole.nodes[step.node].op.name

    def _is_view(
        self, step: StorageStep, readers: dict[int, dict[object, str]]
    ) -> bool:
        """What is returned is a copy of a piece, but the reshaped tensor itself."""
        if step.node == GUARD or not self.whole.nodes[step.node].is_view:
            return False
        return self.name(step) in VIEWS or _RETURN not in readers.get(
            step.results[0], {}
        )

    def handed_on(self, step: StorageStep) -> dict[int, int]:
        """See `StorageNode.handed_on`."""
        return {} if step.node == GUARD else self.whole.nodes[step.node].handed_on

    def carried(self, step: StorageStep) -> frozenset[int]:
        """See `StorageNode.carried`."""
        return (
            frozenset() if step.node == GUARD else self.whole.nodes[step.node].carried
        )

    def _readers(self) -> dict[int, dict[object, str]]:
        """The steps that read each value, and their ops' names.

        What is read through views, and through masks that are not stored.
        """
        found: dict[int, dict[object, str]] = {}
        for value in self.whole.returned:
            found.setdefault(value, {})[_RETURN] = _RETURN
        for at in reversed(range(len(self.steps))):
            step = self.steps[at]
            name = self.name(step)
            if self._is_view(step, found):
                for i, place in self.handed_on(step).items():
                    through = found.get(step.results[i], {})
                    found.setdefault(step.operands[place], {}).update(through)
                continue
            own = found.get(step.results[0], {}) if step.results else {}
            if self._is_mask(step) and not self._needs_mask(own):
                for operand in step.operands:
                    found.setdefault(operand, {}).update(own)
                continue
            carried = self.carried(step)
            for place, operand in enumerate(step.operands):
                reader = _CARRY if place in carried else name
                found.setdefault(operand, {})[at, reader] = reader
        return found

    def _is_mask(self, step: StorageStep) -> bool:
        return step.node != GUARD and self.whole.nodes[step.node].is_mask

    @staticmethod
    def _needs_mask(readers: dict[object, str]) -> bool:
        """Whether something reads it that cannot make it again."""
        return any(reader not in READERS for reader in readers.values())

    def _is_stored(
        self, step: StorageStep, place: int, readers: dict[object, str], free: set[int]
    ) -> bool:
        name, names = self.name(step), list(readers.values())
        if place in self.handed_on(step):
            return _RETURN in names and name in _PIECES
        if name in ELEMENTWISE and self._is_counter(step.results[place]):
            return False
        maps = name in JOINED or name == "stablehlo.slice"
        if name in FREE or (maps and free.issuperset(step.operands)):
            # A mask, a scale: made from constants alone.
            return _RETURN in names or (
                _CARRY in names and not self._is_counter(step.results[place])
            )
        if name in JOINED and self._maps_root(step):
            # What is computed once has to lie somewhere for those that read on.
            return len(names) != 1 or names[0] not in MAPS
        if self._is_mask(step):
            return self._needs_mask(readers)
        if name in JOINED:
            return len(names) > 1 or any(reader not in READERS for reader in names)
        if name in ROOTS and len(names) == 1:
            return names[0] not in MAPS and names[0] != _INTO
        return True

    def _part_roots(self, step: StorageStep) -> None:
        """Store what comes of all products that a map reads but the last one."""
        for value in sorted(self.mapped.intersection(step.operands))[:-1]:
            self.behind[value] = (value,)
            self.mapped.discard(value)

    def _maps_root(self, step: StorageStep) -> bool:
        return not self.mapped.isdisjoint(step.operands)

    def _is_counter(self, result: int) -> bool:
        """Whether it is an integer alone: the host counts loops, and has these."""
        return result < len(self.whole.values) and is_scalar_integer(
            self.whole.values[result]
        )

    def _first_equal(
        self, step: StorageStep, result: int, filled: dict[object, int]
    ) -> int:
        """The value itself; of equal constants the first: they are one buffer."""
        if self.name(step) not in FREE or step.operands:
            return result
        op = self.whole.nodes[step.node].op
        key = (op.name, op.results[0].type, *attributes(op).items())
        return filled.setdefault(key, result)

    def _sources(self, step: StorageStep, place: int) -> tuple[int, ...]:
        """What a value that is not stored is computed from."""
        of = self.handed_on(step).get(place)
        through = step.operands if of is None else (step.operands[of],)
        return tuple(dict.fromkeys(v for x in through for v in self.behind[x]))


def _is_free(value: Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name in FREE
