"""Means over the workers of tensors that travel in a code.

Each member's words go to all others (one all-gather of a row a member, whatever the
number of tensors), and every member adds up what they stand for, in the order of the
ranks: all get the same bits. A member receives (M - 1) times the words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pcp.dialect import collectives, hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.loops import counted
from pcp.passes.training.optimizers.numbers import like, scale
from pcp.passes.training.outer.parts.codes import Code, Plain, as_numbers, as_words
from pcp.passes.training.outer.parts.group import AXIS, MESH

Value = ir.Value
SMALLEST = 64
"""Rows of fewer numbers are not worth a code: such tensors travel as they are."""


@dataclass(frozen=True)
class CodedPart:
    """`[rows, columns]` of f32 and the code it travels in."""

    tiles: Value
    code: Code

    @property
    def words(self) -> int:
        """What it takes."""
        return self.code.words(*hlo.shape_of(self.tiles))

    def decoded(self, words: Value) -> Value:
        """What a row of words stands for."""
        return self.code.decode(words, *hlo.shape_of(self.tiles))


def part(tiles: Value, code: Code) -> CodedPart:
    """In `code`, if the rows are long enough for it."""
    return CodedPart(tiles, code if hlo.shape_of(tiles)[1] >= SMALLEST else Plain())


def mean(parts: Sequence[CodedPart], tokens: Value) -> tuple[list[Value], list[Value]]:
    """Σ_m t_m C(x_m) / Σ_m t_m of each part, and this member's own C(x)."""
    stacks = stacked(parts)
    coded = [stack.code.encode(stack.tiles) for stack, _ in stacks]
    payload = hlo.concatenate([as_words(tokens), *coded], 0)
    own = [stack.decoded(w) for (stack, _), w in zip(stacks, coded, strict=True)]
    means = fold(payload, [stack for stack, _ in stacks])
    return apart(means, stacks, parts), apart(own, stacks, parts)


Stacks = Sequence[tuple[CodedPart, Sequence[int]]]


def stacked(parts: Sequence[CodedPart]) -> Stacks:
    """Parts in one code with equal columns as one part, with the numbers of each.

    A model has many parameters and few shapes of tiles: what is built, and what runs,
    is a kernel for each shape.
    """
    groups: dict[tuple[Code, int], list[int]] = {}
    for number, p in enumerate(parts):
        _, columns = hlo.shape_of(p.tiles)
        key = (p.code, 0 if isinstance(p.code, Plain) else columns)
        groups.setdefault(key, []).append(number)
    return [
        (CodedPart(_stack([_flat(parts[n]) for n in numbers]), code), numbers)
        for (code, _), numbers in groups.items()
    ]


def _stack(tiles: Sequence[Value]) -> Value:
    return tiles[0] if len(tiles) == 1 else hlo.concatenate(tiles, 0)


def _flat(p: CodedPart) -> Value:
    """What has no tiles to speak of as one column."""
    plain = isinstance(p.code, Plain)
    return hlo.reshape(p.tiles, (hlo.size(p.tiles), 1)) if plain else p.tiles


def apart(
    values: Sequence[Value], stacks: Stacks, parts: Sequence[CodedPart]
) -> list[Value]:
    """The parts' own rows of each stack, in the parts' order."""
    found: dict[int, Value] = {}
    for value, (_, numbers) in zip(values, stacks, strict=True):
        _, columns = hlo.shape_of(value)
        ends = accumulate(
            (hlo.size(parts[n].tiles) // columns for n in numbers), initial=0
        )
        for n, (a, b) in zip(numbers, pairwise(ends), strict=True):
            piece = hlo.slice_(value, [a, 0], [b, columns])
            found[n] = hlo.reshape(piece, hlo.shape_of(parts[n].tiles))
    return [found[n] for n in range(len(parts))]


def fold(payload: Value, parts: Sequence[CodedPart]) -> list[Value]:
    """The mean of what was decoded, by the weights that come first in each row.

    It is summed in the order of ranks.
    """
    ends = list(accumulate((p.words for p in parts), initial=1))

    def add(row: Value, total: Value, *sums: Value) -> list[Value]:
        weight = hlo.reshape(as_numbers(hlo.slice_(row, [0], [1])), ())
        pieces = [hlo.slice_(row, [a], [b]) for a, b in pairwise(ends)]
        return [
            hlo.add(total, weight),
            *(
                hlo.add(x, scale(p.decoded(words), weight))
                for x, p, words in zip(sums, parts, pieces, strict=True)
            ),
        ]

    zeros = [hlo.zeros(hlo.tensor((), ir.F32Type.get()))]
    zeros += [hlo.zeros(p.tiles.type) for p in parts]
    total, *sums = for_everyone(payload, zeros, add)
    return [hlo.divide(x, like(total, x)) for x in sums]


def for_everyone(
    payload: Value, sums: Sequence[Value], add: Callable[..., list[Value]]
) -> list[Value]:
    """What `sums = add(row, *sums)` leaves for all members' payloads, by rank."""
    everyones = gather(payload)
    members = hlo.op(
        "get_dimension_size",
        [everyones],
        [hlo.tensor((), ir.IntegerType.get_signless(32))],
        dimension=hlo.i64(0),
    ).result
    size = hlo.size(payload)

    def step(i: Value, *rest: Value) -> list[Value]:
        return add(_row(everyones, i, size), *rest)

    return counted(members, sums, step)


def gather(payload: Value) -> Value:
    """`[members, words]`, as many rows as the group has members."""
    size = hlo.size(payload)
    row = hlo.reshape(payload, (1, size))
    many = ir.ShapedType.get_dynamic_size()
    result = ir.RankedTensorType.get((many, size), hlo.element_type(payload))
    return collectives.all_gather(row, result, mesh=MESH, axes=[AXIS], dim=0)


def _row(everyones: Value, i: Value, size: int) -> Value:
    """Row i; `hlo.dynamic_slice` knows static operands only."""
    zero = hlo.zeros(i.type)
    row = hlo.op(
        "dynamic_slice",
        [everyones, i, zero],
        [hlo.tensor((1, size), ir.RankedTensorType(everyones.type).element_type)],
        slice_sizes=hlo.i64s([1, size]),
    ).result
    return hlo.reshape(row, (size,))
