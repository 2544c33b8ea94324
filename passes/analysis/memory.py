"""Which values have memory of their own, and the most that an order of ops holds.

The model is that of a compiler that fuses as IREE does. What maps element by element
is computed where it is read; memory goes to what is contracted, reduced, gathered or
sent, and to maps that more than one op reads. Constants, broadcasts and reshapes hold
nothing. Arguments belong to the caller and count for nothing.

Ops run in submissions: a loop or a branch, an exchange and a barrier are one each.
What is read behind its submission, or returned, has its memory from that submission's
first op to the end of the last one that reads it; anything else from its op to its
last reader. What updates a part of a tensor takes that tensor's memory, where nothing
reads it afterwards. A loop holds its carries twice: those that a round reads, and
those that it makes.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pcp.dialect.attributes import Future
from pcp.dialect.bindings import ir
from pcp.dialect.hlo import shape_of
from pcp.passes.analysis.cost import flops, size_bytes, update_of
from pcp.passes.analysis.loops import invariant, is_scalar_integer
from pcp.passes.elementwise import ELEMENTWISE
from pcp.passes.rewriting import HOLD, captures, ints, is_pure
from pcp.passes.sharding.flow import CONTROL_FLOW, block_of, returned

Value = ir.Value

#: Another look at what is stored already.
VIEWS = frozenset({"stablehlo.reshape", "pcp.wait", HOLD})
#: Made where they are read, whoever reads them.
FREE = frozenset(
    {
        "arith.constant",
        "stablehlo.broadcast_in_dim",
        "stablehlo.constant",
        "stablehlo.iota",
    }
)
#: Joined with the one op that reads them.
JOINED = ELEMENTWISE | {"stablehlo.reverse", "stablehlo.slice", "stablehlo.transpose"}
#: Writes what it reads into a part of a tensor, element by element.
_INTO = "stablehlo.dynamic_update_slice"
#: What reads a joined map element by element as well.
READERS = JOINED | {_INTO, "stablehlo.broadcast_in_dim", "stablehlo.reduce"}
#: What maps can be appended to.
ROOTS = frozenset(
    {"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.reduce"}
)


# --- a block as numbered values ---


@dataclass(frozen=True)
class Node:
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
    def inside(self) -> int:
        """Bytes that a round of a loop, or a branch, holds besides the op's results."""
        if self.op.name not in CONTROL_FLOW:
            return 0
        blocks = [block_of(self.op, i) for i in range(len(self.op.regions))]
        if self.op.name == "stablehlo.while":
            return max(map(temporary_bytes, blocks))
        return max(temporary_bytes(b, list(returned(b).operands)) for b in blocks)

    @cached_property
    def is_view(self) -> bool:
        """Whether it is another look at its operands; so is a piece without gaps."""
        return self.op.name in VIEWS or _is_piece(self.op)

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
            return {i: i for i in places if i not in self.handed_on}
        return {i: i for i in places if update_of(self.op, i) is not None}


@dataclass
class Graph:
    """A block's ops in order; `sizes` in bytes, `returned` by number.

    The `arguments` first values are the block's, then what it reads of its
    surroundings.
    """

    nodes: list[Node] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    returned: tuple[int, ...] = ()
    arguments: int = 0

    @property
    def producer(self) -> dict[int, int]:
        """The node that makes each value; arguments have none."""
        return {r: i for i, node in enumerate(self.nodes) for r in node.results}

    @property
    def steps(self) -> list["Step"]:
        """The block as it is."""
        return [Step(i, n.operands, n.results) for i, n in enumerate(self.nodes)]


def graph(block: ir.Block) -> Graph:
    """Number the values that a block's ops read and make."""
    *ops, end = [view.operation for view in block.operations]
    made = {result: None for op in ops for result in op.results}
    read = dict.fromkeys(v for op in (*ops, end) for v in _reads(op) if v not in made)
    values = list(dict.fromkeys([*block.arguments, *read, *made]))
    number = {value: i for i, value in enumerate(values)}

    def numbers(some: Iterable[Value]) -> tuple[int, ...]:
        return tuple(number[v] for v in some)

    return Graph(
        [Node(op, numbers(_reads(op)), numbers(op.results)) for op in ops],
        values,
        [value_bytes(v) for v in values],
        numbers(end.operands),
        len(values) - len(made),
    )


def _is_piece(op: ir.Operation) -> bool:
    """Whether an op takes a part that lies in memory as one piece: rows of a stack."""
    if op.name not in ("stablehlo.dynamic_slice", "stablehlo.slice"):
        return False
    if op.name == "stablehlo.slice" and any(n != 1 for n in ints(op, "strides")):
        return False
    part, whole = shape_of(op.results[0]), shape_of(op.operands[0])
    rows = next((i for i, n in enumerate(part) if n != 1), len(part))
    return part[rows + 1 :] == whole[rows + 1 :]


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
class Step:
    """A node run with these values; a clone has results of its own."""

    node: int
    operands: tuple[int, ...]
    results: tuple[int, ...]


# --- what is stored ---

#: Stands for the reader of what a block returns.
_RETURN = "return"


@dataclass
class Storage:
    """Of ops in an order: the stored values that each value is, or is computed from."""

    whole: Graph
    steps: Sequence[Step]
    behind: dict[int, tuple[int, ...]] = field(default_factory=dict)

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
        for step in self.steps:
            if self.name(step) in FREE:
                free.update(step.results)
            for i, result in enumerate(step.results):
                if self._is_stored(step, i, readers.get(result, {}), free):
                    self.behind[result] = (result,)
                else:
                    self.behind[result] = self._sources(step, i)

    @cached_property
    def stored(self) -> frozenset[Value]:
        """The block's values that have memory, arguments included."""
        values = enumerate(self.whole.values)
        return frozenset(v for i, v in values if self.behind.get(i) == (i,))

    def name(self, step: Step) -> str:
        """Of a step's op."""
        guard = step.node == GUARD
        return "stablehlo.select" if guard else self.whole.nodes[step.node].op.name

    def _is_view(self, step: Step) -> bool:
        return step.node != GUARD and self.whole.nodes[step.node].is_view

    def handed_on(self, step: Step) -> dict[int, int]:
        """See `Node.handed_on`."""
        return {} if step.node == GUARD else self.whole.nodes[step.node].handed_on

    def _readers(self) -> dict[int, dict[object, str]]:
        """The steps that read each value, also through views, and their ops' names."""
        found: dict[int, dict[object, str]] = {}
        for value in self.whole.returned:
            found.setdefault(value, {})[_RETURN] = _RETURN
        for at in reversed(range(len(self.steps))):
            step = self.steps[at]
            name = self.name(step)
            if self._is_view(step):
                for i, place in self.handed_on(step).items():
                    own = found.get(step.results[i], {})
                    found.setdefault(step.operands[place], {}).update(own)
                continue
            for operand in step.operands:
                found.setdefault(operand, {})[at] = name
        return found

    def _is_stored(
        self, step: Step, place: int, readers: dict[object, str], free: set[int]
    ) -> bool:
        name, names = self.name(step), list(readers.values())
        if place in self.handed_on(step):
            return False
        if name in ELEMENTWISE and self._is_counter(step.results[place]):
            return False
        if name in FREE or (name in JOINED and free.issuperset(step.operands)):
            return _RETURN in names  # a mask, a scale: made from constants alone
        if name in JOINED:
            return len(names) > 1 or any(reader not in READERS for reader in names)
        if name in ROOTS and len(names) == 1:
            return names[0] not in ELEMENTWISE and names[0] != _INTO
        return True

    def _is_counter(self, result: int) -> bool:
        """Whether it is an integer alone: the host counts loops, and has these."""
        return result < len(self.whole.values) and is_scalar_integer(
            self.whole.values[result]
        )

    def _sources(self, step: Step, place: int) -> tuple[int, ...]:
        """What a value that is not stored is computed from."""
        of = self.handed_on(step).get(place)
        through = step.operands if of is None else (step.operands[of],)
        return tuple(dict.fromkeys(v for x in through for v in self.behind[x]))


def _is_free(value: Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name in FREE


# --- how long it is held ---


@dataclass
class _Life:
    """A piece of memory: its bytes, and the steps from and to which it is held."""

    size: int
    first: int
    last: int


@dataclass
class _Lives:
    """The memory of a storage's values; `kept` ones are held to the end."""

    storage: Storage
    sizes: Sequence[int]
    kept: Collection[int]
    of: dict[int, _Life] = field(default_factory=dict)

    def __post_init__(self) -> None:
        last = self._last_reads()
        for at, step in enumerate(self.storage.steps):
            for i, result in enumerate(step.results):
                if self.storage.behind[result] == (result,):
                    self.of[result] = self._life(step, i, at, last)

    def _last_reads(self) -> dict[int, int]:
        storage, last = self.storage, {}
        for at, step in enumerate(storage.steps):
            for value in (*step.operands, *step.results):
                last.update(dict.fromkeys(storage.behind[value], at))
        for value in (*storage.whole.returned, *self.kept):
            last.update(dict.fromkeys(storage.behind[value], len(storage.steps)))
        return last

    def _life(self, step: Step, place: int, at: int, last: dict[int, int]) -> _Life:
        """Of a result: its own, or that of the operand whose memory it takes."""
        result = step.results[place]
        size, end = self.sizes[result], last[result]
        if (old := self._replaced(step, place, at, last)) is None:
            return _Life(size, at, end)
        old.size, old.last = max(old.size, size), end
        return old

    def _replaced(
        self, step: Step, place: int, at: int, last: dict[int, int]
    ) -> _Life | None:
        node = None if step.node == GUARD else self.storage.whole.nodes[step.node]
        if node is None or place not in node.replaced:
            return None
        behind = self.storage.behind[step.operands[node.replaced[place]]]
        if len(behind) != 1 or last[behind[0]] != at:
            return None
        return self.of.get(behind[0])


def _submissions(storage: Storage) -> list[tuple[int, int]]:
    """The first and last step of each step's submission."""
    names = [storage.name(step) for step in storage.steps]
    alone = [n in CONTROL_FLOW or n == HOLD or n.startswith("pcp.") for n in names]
    firsts = [0] * len(names)
    lasts = list(range(len(names)))
    for i in range(1, len(names)):
        firsts[i] = i if alone[i] or alone[i - 1] else firsts[i - 1]
    for i in reversed(range(len(names) - 1)):
        lasts[i] = lasts[i + 1] if firsts[i] == firsts[i + 1] else i
    return list(zip(firsts, lasts, strict=True))


def peak(
    whole: Graph,
    steps: Sequence[Step],
    sizes: Sequence[int],
    placed: Collection[int] = (),
    lasting: Collection[int] = (),
) -> int:
    """The most bytes that are live at once while `steps` run in this order.

    `placed` values take the place of arguments; `lasting` ones are held to the end.
    So is what goes over the wire: IREE leaves what it exports to the end of the call.
    """
    storage = Storage(whole, steps)
    sent = [x for s in steps if _sends(whole, s) for x in s.operands]
    lives = _Lives(storage, sizes, [*sent, *lasting])
    changes = [0] * (len(steps) + 1)
    spans = _submissions(storage)
    for life in {id(v): v for k, v in lives.of.items() if k not in placed}.values():
        end = min(life.last, len(steps) - 1)
        if life.last > spans[life.first][1]:
            life.first, end = spans[life.first][0], spans[end][1]
        changes[life.first] += life.size
        changes[end + 1] -= life.size
    held = most = 0
    for change, step in zip(changes, steps, strict=False):
        held += change
        inside = 0 if step.node == GUARD else whole.nodes[step.node].inside
        most = max(most, held + inside)
    return most


def temporary_bytes(
    block: ir.Block, placed: Iterable[Value] = (), lasting: Iterable[Value] = ()
) -> int:
    """The most bytes that a block holds at once besides its arguments: see `peak`."""
    whole = graph(block)
    number = {value: i for i, value in enumerate(whole.values)}
    some = ([number[v] for v in values] for values in (placed, lasting))
    return peak(whole, whole.steps, whole.sizes, *some)


def _sends(whole: Graph, step: Step) -> bool:
    """Whether its operands go to other devices, at once or while work goes on."""
    if step.node == GUARD:
        return False
    op = whole.nodes[step.node].op
    return op.name in ("pcp.start", "pcp.send") or exchanges(op)


def exchanges(op: ir.Operation) -> bool:
    """Whether members along axes of a mesh do it together."""
    return op.name.startswith("pcp.") and "axes" in op.attributes
