"""The most memory that an order of ops holds at once.

Arguments belong to the caller and count for nothing; what else has memory says
`storage`. Ops run in submissions, as IREE's: a loop or a branch, an exchange and a
barrier are one each. A submission's own values lie in one allocation (`packing`), each
from its op to its last reader. What is read behind its submission, or returned, lies in
another one, which is held from that submission's first op to the end of the last one
that reads any of it. What updates a part of a tensor takes that tensor's memory, where
nothing reads it afterwards.

A loop holds twice the carries that each round makes anew: those that a round reads, and
those that it makes. What it begins with is free after the first round, if nothing else
of its allocation is read behind the loop. Stacks that a loop fills lie in one place
(`in_place`).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pcp.dialect.bindings import ir
from pcp.passes.analysis.in_place import stacks_of
from pcp.passes.analysis.packing import Life, aligned, packed
from pcp.passes.analysis.storage import (
    FREE,
    GUARD,
    Storage,
    StorageGraph,
    StorageStep,
    graph,
)
from pcp.passes.core.rewriting import HOLD
from pcp.passes.core.walk import CONTROL_FLOW, block_of, returned

Value = ir.Value


@dataclass
class _Lives:
    """The memory of a storage's values; `kept` ones are held to the end."""

    storage: Storage
    sizes: Sequence[int]
    kept: Collection[int]
    of: dict[int, Life] = field(default_factory=dict)
    #: The stored values that a loop begins with.
    begun: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        first, last = self._first_reads(), self._last_reads()
        for at, step in enumerate(self.storage.steps):
            free = self.storage.name(step) in FREE
            for i, result in enumerate(step.results):
                if self.storage.behind[result] == (result,):
                    # A constant is filled in just before it is read.
                    start = max(at, first.get(result, at) - 1) if free else at
                    self.of[result] = self._life(step, i, start, last)

    def _first_reads(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for at, step in enumerate(self.storage.steps):
            for operand in step.operands:
                for value in self.storage.behind[operand]:
                    found.setdefault(value, at)
        return found

    def _last_reads(self) -> dict[int, int]:
        storage, last = self.storage, {}
        for at, step in enumerate(storage.steps):
            carried = storage.carried(step)
            for place, value in enumerate(step.operands):
                if place in carried:
                    last.update(dict.fromkeys(storage.behind[value], at - 1))
                    self.begun.update(storage.behind[value])
            rest = (v for i, v in enumerate(step.operands) if i not in carried)
            for value in (*rest, *step.results):
                last.update(dict.fromkeys(storage.behind[value], at))
        for value in (*storage.whole.returned, *self.kept):
            last.update(dict.fromkeys(storage.behind[value], len(storage.steps)))
        return last

    def _life(
        self, step: StorageStep, place: int, at: int, last: dict[int, int]
    ) -> Life:
        """Of a result: its own, or that of the operand whose memory it takes."""
        result = step.results[place]
        size, end = self.sizes[result], last[result]
        if (old := self._replaced(step, place, at, last)) is None:
            return Life(size, at, end)
        old.size, old.last = max(old.size, size), end
        return old

    def _replaced(
        self, step: StorageStep, place: int, at: int, last: dict[int, int]
    ) -> Life | None:
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
    alone = [n in CONTROL_FLOW or n == HOLD or _is_exchange(n) for n in names]
    firsts = [0] * len(names)
    lasts = list(range(len(names)))
    for i in range(1, len(names)):
        firsts[i] = i if alone[i] or alone[i - 1] else firsts[i - 1]
    for i in reversed(range(len(names) - 1)):
        lasts[i] = lasts[i + 1] if firsts[i] == firsts[i + 1] else i
    return list(zip(firsts, lasts, strict=True))


def _is_exchange(name: str) -> bool:
    """Whether it is an op of the dialect that is still there when IREE compiles."""
    return name.startswith("pcp.") and name != "pcp.stop_gradient"


@dataclass
class _Allocations:
    """The allocations of submissions, by the first step of each."""

    storage: Storage
    own: dict[int, list[Life]] = field(default_factory=dict)
    #: What outlives its submission: of the caller's apart from the others.
    crossing: dict[tuple[int, bool], Life] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spans = _submissions(self.storage)

    def add(self, life: Life, begins_loop: bool) -> None:
        """Put a value's memory where it lies."""
        first, end = self.spans[life.first]
        if life.last <= end and not begins_loop:
            self.own.setdefault(first, []).append(life)
            return
        steps = self.storage.steps
        loop = self.storage.name(steps[first]) == "stablehlo.while"
        given = not loop and life.last == len(steps)
        whole = self.crossing.setdefault((first, given), Life(0, first, end))
        whole.size += aligned(life.size)
        until = self.spans[min(life.last, len(steps) - 1)][1]
        whole.last = max(whole.last, until)

    def peak(self, inside: Sequence[int]) -> int:
        """The most bytes at once, `inside` of which each step holds besides."""
        changes = [0] * (len(inside) + 1)
        for life in self.crossing.values():
            changes[life.first] += life.size
            changes[life.last + 1] -= life.size
        held = most = 0
        for at, (first, _) in enumerate(self.spans):
            held += changes[at]
            if first == at:
                own = packed(self.own.get(at, ()))
                most = max(most, held + own + inside[at])
        return most


def peak(
    whole: StorageGraph,
    steps: Sequence[StorageStep],
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
    begun = {id(lives.of[v]) for v in lives.begun if v in lives.of}
    allocations = _Allocations(storage)
    for life in {id(v): v for k, v in lives.of.items() if k not in placed}.values():
        allocations.add(life, id(life) in begun)
    for at, step in enumerate(steps):
        if scratch := _scratch(whole, step):
            allocations.add(Life(scratch, at, at), begins_loop=False)
    return allocations.peak([_inside(whole, step) for step in steps])


def _scratch(whole: StorageGraph, step: StorageStep) -> int:
    """Bytes of what an op reads that is written out for it alone."""
    return 0 if step.node == GUARD else whole.nodes[step.node].scratch


def _inside(whole: StorageGraph, step: StorageStep) -> int:
    """Bytes that a round of a loop, or a branch, holds besides the op's results."""
    op = None if step.node == GUARD else whole.nodes[step.node].op
    if op is None or op.name not in CONTROL_FLOW:
        return 0
    if step.node not in whole.inside:
        blocks = [block_of(op, i) for i in range(len(op.regions))]
        held = map(temporary_bytes, blocks, (_placed(op, b) for b in blocks))
        whole.inside[step.node] = max(held)
    return whole.inside[step.node]


def _placed(op: ir.Operation, block: ir.Block) -> list[Value]:
    """What a region gives that lies where a branch's result or a loop's carry does."""
    found = list(returned(block).operands)
    if op.name != "stablehlo.while":
        return found
    if block != block_of(op, 1):
        return []
    return [found[place] for place in stacks_of(op)]


def temporary_bytes(
    block: ir.Block, placed: Iterable[Value] = (), lasting: Iterable[Value] = ()
) -> int:
    """The most bytes that a block holds at once besides its arguments: see `peak`."""
    whole = graph(block)
    number = {value: i for i, value in enumerate(whole.values)}
    some = ([number[v] for v in values] for values in (placed, lasting))
    return peak(whole, whole.steps, whole.sizes, *some)


def _sends(whole: StorageGraph, step: StorageStep) -> bool:
    """Whether its operands go to other devices, at once or while work goes on."""
    if step.node == GUARD:
        return False
    op = whole.nodes[step.node].op
    return op.name in ("pcp.start", "pcp.send") or exchanges(op)


def exchanges(op: ir.Operation) -> bool:
    """Whether members along axes of a mesh do it together."""
    return op.name.startswith("pcp.") and "axes" in op.attributes
