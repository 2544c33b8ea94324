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
from pcp.passes.optimizers.numbers import scale
from pcp.passes.outer.codes import Code, Plain, as_numbers, as_words
from pcp.passes.outer.group import AXIS, MESH, sum_over_workers

Value = ir.Value
SMALLEST = 64
"""Rows of fewer numbers are not worth a code: such tensors travel as they are."""


@dataclass(frozen=True)
class Part:
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


def part(tiles: Value, code: Code) -> Part:
    """In `code`, if the rows are long enough for it."""
    return Part(tiles, code if hlo.shape_of(tiles)[1] >= SMALLEST else Plain())


def mean(parts: Sequence[Part], tokens: Value) -> tuple[list[Value], list[Value]]:
    """Σ_m t_m C(x_m) / Σ_m t_m of each part, and this member's own C(x)."""
    share = hlo.divide(tokens, sum_over_workers(tokens))
    coded = [p.code.encode(p.tiles) for p in parts]
    payload = hlo.concatenate([as_words(share), *coded], 0)
    own = [p.decoded(words) for p, words in zip(parts, coded, strict=True)]
    return fold(payload, parts), own


def fold(payload: Value, parts: Sequence[Part]) -> list[Value]:
    """Σ over the members of share times what was decoded, in the order of ranks."""
    ends = list(accumulate((p.words for p in parts), initial=1))

    def add(row: Value, *sums: Value) -> list[Value]:
        share = hlo.reshape(as_numbers(hlo.slice_(row, [0], [1])), ())
        pieces = [hlo.slice_(row, [a], [b]) for a, b in pairwise(ends)]
        return [
            hlo.add(total, scale(p.decoded(words), share))
            for total, p, words in zip(sums, parts, pieces, strict=True)
        ]

    return for_everyone(payload, [hlo.zeros(p.tiles.type) for p in parts], add)


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

    return _for_each(members, sums, step)


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


def _for_each(members: Value, sums: Sequence[Value], step) -> list[Value]:
    """What `sums = step(i, *sums)` leaves after all members."""
    operands = [hlo.zeros(members.type), *sums]
    types = [x.type for x in operands]
    loop = hlo.op("while", operands, types, regions=2)

    def goes_on(i: Value, *_: Value) -> Value:
        return hlo.compare("LT", i, members, "SIGNED")

    def body(i: Value, *rest: Value) -> list[Value]:
        return [hlo.add(i, hlo.constant_like(i, 1)), *step(i, *rest)]

    hlo.body(loop, types, goes_on, region=0)
    hlo.body(loop, types, body, region=1)
    return list(loop.results)[1:]
