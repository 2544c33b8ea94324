"""Ops that repeat, block after block, with each block fed by the one before.

A block is a run of ops; blocks are equal where ops, attributes and types are, and where
operands come from the same places: of the block itself, of the block before, or from
outside. What comes from outside may differ: the parameters of a layer do.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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


def find(ops: Sequence[ir.Operation], least: int) -> Blocks | None:
    """The blocks that most ops are in; at least `least` of them."""
    numbers = signatures(ops)
    best: Blocks | None = None
    for length in _periods(numbers):
        for first, run in _runs(numbers, length):
            if run // length + 1 < least or (best and run + length <= best.ops):
                continue
            found = _aligned(ops, first, run, length, least)
            if found is not None and (best is None or found.ops > best.ops):
                best = found
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
    ops: Sequence[ir.Operation], first: int, run: int, length: int, least: int
) -> Blocks | None:
    """Blocks of the run that begin where fewest values cross from one to the next."""
    places = {v: (i, r) for i, op in enumerate(ops) for r, v in enumerate(op.results)}
    slots = [operands(op) for op in ops]
    best: Blocks | None = None
    for shift in range(min(length, run)):
        count = (run - shift) // length + 1
        for skipped in (0, 1):  # the first block may differ in what feeds it
            if count - skipped < least:
                continue
            start = first + shift + skipped * length
            blocks = Blocks(start, length, count - skipped)
            if not _matches(blocks, slots, places) or not _closes(blocks, ops, places):
                continue
            if best is None or _rank(blocks) < _rank(best):
                best = blocks
            break
    return best


def _rank(blocks: Blocks) -> tuple[int, int]:
    return -blocks.ops, len(blocks.carries) + len(blocks.results)


def _matches(
    blocks: Blocks, slots: Sequence[Sequence[Value]], places: Mapping[Value, Place]
) -> bool:
    """Whether all operands come from like places; notes which."""
    start, length = blocks.start, blocks.length
    for i in range(length):
        per_block = [slots[start + k * length + i] for k in range(blocks.count)]
        if len({len(values) for values in per_block}) > 1:
            return False
        for j, values in enumerate(zip(*per_block, strict=True)):
            found = [
                _origin(v, start + k * length, blocks, places)
                for k, v in enumerate(values)
            ]
            if not _note(blocks, (i, j), values, found):
                return False
    return True


Origin = tuple[str, Place | None]


def _origin(
    value: Value, begin: int, blocks: Blocks, places: Mapping[Value, Place]
) -> Origin:
    """Whether a block that begins there has it, the one before, or what is outside."""
    place = places.get(value)
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


def _closes(
    blocks: Blocks, ops: Sequence[ir.Operation], places: Mapping[Value, Place]
) -> bool:
    """Whether only the last block feeds what follows; notes by which values."""
    end = blocks.start + blocks.ops
    members = {op: i for i, op in enumerate(ops[blocks.start : end])}
    for k in range(blocks.count):
        for i in range(blocks.length):
            op = ops[blocks.start + k * blocks.length + i]
            for r, value in enumerate(op.results):
                if all(_member(use.owner.operation, members) for use in value.uses):
                    continue
                if k != blocks.count - 1:
                    return False
                blocks.results.append(((i, r), value))
    return True


def _member(user: ir.Operation, members: Mapping[ir.Operation, int]) -> bool:
    """Whether an op is in a block, or in a region of one that is."""
    while user not in members:
        parent = user.parent
        if parent is None or parent.operation.name == "func.func":
            return False
        user = parent.operation
    return True
