"""Ops that repeat, block after block, with each block fed by the one before.

A block is a run of ops; blocks are equal where ops, attributes and types are, and where
operands come from the same places: of the block itself, of the block before, or from
outside. What comes from outside may differ: the parameters of a layer do.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import captures

Value = ir.Value
Place = tuple[int, int]
"""An op by its number in a block, and one of its results."""

PERIODS = 16
"""How many lengths of a block are looked at: the commonest distances of equal ops."""


@dataclass
class Blocks:
    """Equal blocks: `count` of `length` ops each, from op number `start` on.

    inside: what an operand is of its own block. carried: a value of the block before,
    with what stands in its place for the first block, by number. outer: what differs
    between blocks, a row of values each. By slot: (op of the block, operand).
    """

    start: int
    length: int
    count: int
    inside: dict[Place, Place] = field(default_factory=dict)
    carried: dict[Place, int] = field(default_factory=dict)
    carries: list[tuple[Place, Value]] = field(default_factory=list)
    outer: dict[Place, int] = field(default_factory=dict)
    rows: list[tuple[Value, ...]] = field(default_factory=list)
    results: list[tuple[Place, Value]] = field(default_factory=list)

    @property
    def ops(self) -> int:
        """How many ops they are together."""
        return self.length * self.count


def operands(op: ir.Operation) -> list[Value]:
    """Its operands, then what its regions use from outside of it."""
    return [*op.operands, *(captures(op) if len(op.regions) else ())]


def signatures(ops: Sequence[ir.Operation]) -> list[int]:
    """A number for each op, equal where ops differ in their operands at most."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(signature(op), len(numbers)) for op in ops]


def signature(op: ir.Operation, known: dict[Value, str] | None = None) -> str:
    """Name, attributes, types, and the same of what is in its regions."""
    known = {} if known is None else known
    attributes = sorted(f"{name}={op.attributes[name]}" for name in op.attributes)
    types = [str(v.type) for v in (*op.operands, *op.results)]
    parts = [op.name, *attributes, *types]
    for region in op.regions:
        for block in region.blocks:
            for argument in block.arguments:
                known[argument] = f"v{len(known)}"
            parts.append("{" + ",".join(str(a.type) for a in block.arguments))
            for view in block.operations:
                inner = view.operation
                names = [known.get(v, f"outer:{v.type}") for v in inner.operands]
                parts += [*names, signature(inner, known)]
                known |= {v: f"v{len(known) + i}" for i, v in enumerate(inner.results)}
            parts.append("}")
    return "|".join(parts)


@dataclass
class Reads:
    """Ops as numbers, so that a search through them asks MLIR once.

    slots: the values that each op reads, by number. values, places: what such a number
    is, and which op makes it (None: none of these). last: the last op that reads a
    value, infinite where something behind all of them does. made: by place, the number
    of the value. results: by op, how many it makes.
    """

    slots: list[list[int]]
    values: list[Value]
    places: list[Place | None]
    last: list[float]
    made: dict[Place, int]
    results: list[int]

    @classmethod
    def of(cls, ops: Sequence[ir.Operation]) -> "Reads":
        """Of the ops of a block, but its terminator."""
        numbers: dict[Value, int] = {}
        made = {
            (i, r): numbers.setdefault(v, len(numbers))
            for i, op in enumerate(ops)
            for r, v in enumerate(op.results)
        }
        slots = [
            [numbers.setdefault(v, len(numbers)) for v in operands(op)] for op in ops
        ]
        places = [*made, *(None for _ in range(len(numbers) - len(made)))]
        last: list[float] = [-1] * len(numbers)
        for i, read in enumerate(slots):
            for value in read:
                last[value] = i
        if ops:
            *_, end = ops[0].block.operations
            for v in end.operands:
                if v in numbers:
                    last[numbers[v]] = inf
        return cls(
            slots, [*numbers], places, last, made, [len(op.results) for op in ops]
        )


def find(ops: Sequence[ir.Operation], least: int) -> Blocks | None:
    """The blocks that most ops are in; at least `least` of them."""
    numbers, reads = signatures(ops), Reads.of(ops)
    best: Blocks | None = None
    for length in _periods(numbers):
        for first, run in _runs(numbers, length):
            more = best.ops if best else 0
            if run // length + 1 < least or run + length <= more:
                continue
            best = _aligned(reads, first, run, length, least, more) or best
    return best


def _periods(numbers: Sequence[int]) -> list[int]:
    """Likely lengths of a block, the commonest and then the shortest first."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for i, number in enumerate(numbers):
        if number in last:
            distances[i - last[number]] += 1
        last[number] = i
    ordered = sorted(distances.items(), key=lambda item: (-item[1], item[0]))
    return [length for length, _ in ordered[:PERIODS]]


def _runs(numbers: Sequence[int], length: int) -> Iterator[tuple[int, int]]:
    """Where ops equal those `length` later: beginnings, and for how many ops."""
    begin = None
    for i in range(len(numbers)):
        alike = i + length < len(numbers) and numbers[i] == numbers[i + length]
        if alike and begin is None:
            begin = i
        elif not alike and begin is not None:
            if i - begin >= length:
                yield begin, i - begin
            begin = None


def _aligned(
    reads: Reads, first: int, run: int, length: int, least: int, more: int
) -> Blocks | None:
    """Blocks of the run that begin where fewest values cross from one to the next.

    They are of more than so many ops. Where they may begin is tried in the order of
    what can come of it at best.
    """
    tried = []
    for shift in range(min(length, run)):
        count = (run - shift) // length + 1
        for skipped in (0, 1):  # the first block may differ in what feeds it
            blocks = Blocks(first + shift + skipped * length, length, count - skipped)
            if blocks.count >= least and blocks.ops > more:
                tried.append(((-blocks.ops, _crossing(reads, blocks)), shift, blocks))
    tried.sort(key=lambda each: each[:2])
    best: tuple[tuple[int, int], int, Blocks] | None = None
    for bound, shift, blocks in tried:
        if best is not None and bound > best[0]:
            break
        if _closes(blocks, reads) and _matches(blocks, reads):
            found = _rank(blocks), shift, blocks
            if best is None or found[:2] < best[:2]:
                best = found
    return best[2] if best else None


def _crossing(reads: Reads, blocks: Blocks) -> int:
    """How many values go from the first block to the second, and out of the last."""
    start, length = blocks.start, blocks.length
    inside = range(start, start + length)
    carried = {
        value
        for i in range(start + length, start + 2 * length)
        for value in reads.slots[i]
        if (place := reads.places[value]) is not None and place[0] in inside
    }
    end = start + blocks.ops
    out = sum(
        reads.last[reads.made[i, r]] >= end
        for i in range(end - length, end)
        for r in range(reads.results[i])
    )
    return len(carried) + out


def _rank(blocks: Blocks) -> tuple[int, int]:
    return -blocks.ops, len(blocks.carries) + len(blocks.results)


def _matches(blocks: Blocks, reads: Reads) -> bool:
    """Whether all operands come from like places; notes which."""
    start, length = blocks.start, blocks.length
    for i in range(length):
        per_block = [reads.slots[start + k * length + i] for k in range(blocks.count)]
        if len({len(values) for values in per_block}) > 1:
            return False
        for j, values in enumerate(zip(*per_block, strict=True)):
            found = [
                _origin(reads.places[v], start + k * length, blocks)
                for k, v in enumerate(values)
            ]
            if not _note(blocks, (i, j), [reads.values[v] for v in values], found):
                return False
    return True


Origin = tuple[str, Place | None]


def _origin(place: Place | None, begin: int, blocks: Blocks) -> Origin:
    """Whether a block that begins there has it, the one before, or what is outside."""
    if place is None or place[0] < blocks.start:
        return "outside", None
    at = place[0] - begin
    if at >= 0:
        return "inside", (at, place[1])
    if at >= -blocks.length:
        return "before", (at + blocks.length, place[1])
    return "earlier", None


def _note(
    blocks: Blocks, slot: Place, values: Sequence[Value], found: Sequence[Origin]
) -> bool:
    (kind, place), rest = found[0], set(found[1:])
    if len(rest) != 1:
        return False
    ((later, source),) = rest
    if later == kind == "inside" and source == place and place is not None:
        blocks.inside[slot] = place
    elif later == "before" and kind == "outside" and source is not None:
        carry = (source, values[0])
        if carry not in blocks.carries:
            blocks.carries.append(carry)
        blocks.carried[slot] = blocks.carries.index(carry)
    elif later == kind == "outside":
        if len({v.type for v in values}) > 1:
            return False
        if any(v != values[0] for v in values):
            row = tuple(values)
            if row not in blocks.rows:
                blocks.rows.append(row)
            blocks.outer[slot] = blocks.rows.index(row)
    else:
        return False
    return True


def _closes(blocks: Blocks, reads: Reads) -> bool:
    """Whether only the last block feeds what follows; notes by which values."""
    end = blocks.start + blocks.ops
    begin = end - blocks.length
    for i in range(blocks.start, end):
        for r in range(reads.results[i]):
            value = reads.made[i, r]
            if reads.last[value] < end:
                continue
            if i < begin:
                return False
            blocks.results.append(((i - begin, r), reads.values[value]))
    return True
