"""Long sorts as Batcher's bitonic network, in a loop: IREE's own is a bubble sort.

In each of its passes, log n (log n + 1) / 2 for n elements, every element is compared
with its partner, of which the position differs in one bit, and one of the two stays.
All rows lie one after the other, each filled up to a power of two, so that the partner
of an element is found by `position xor 2^j` in all of them at once.

What passes through the network is what the comparator reads, and the positions from
which it came. The positions decide between equals and send what fills a row up to its
end; what the comparator does not read is gathered by them at last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, gather
from pcp.passes.core.elementwise import ELEMENTWISE, inline
from pcp.passes.core.rewriting import integer
from pcp.passes.legalize.sorts.positions import index_type, position_in

Value = ir.Value

#: A network takes less time than IREE's from so many elements to a row on, and so many
#: pairs of them in all.
LONG, PAIRS = 64, 2**16


def sort(op: ir.Operation) -> Sequence[Value] | None:
    """A stable sort by a network; None of few elements, or of what it cannot copy."""
    rows = _Rows(hlo.shape_of(op.operands[0]), integer(op, "dimension"))
    few = rows.count < LONG or prod(rows.shape) * rows.count < PAIRS
    if few or not _is_elementwise(op):
        return None
    less = op.regions[0].blocks[0]
    read = [i for i in range(len(op.operands)) if _is_read(less, i)]
    keys = [rows.filled(op.operands[i]) for i in read]
    places, *found = _sorted(rows, less, read, keys)
    results = {i: rows.restored(x) for i, x in zip(read, found, strict=True)}
    for i, x in enumerate(op.operands):
        if i not in results:
            results[i] = _moved(op, i, x, rows, places)
    return [results[i] for i in range(len(op.operands))]


def passes(count: int) -> int:
    """How often a network goes through so many elements."""
    stages = _stages(count)
    return stages * (stages + 1) // 2


def _stages(count: int) -> int:
    return (count - 1).bit_length()


def _is_elementwise(op: ir.Operation) -> bool:
    """Whether the comparator can be written out on whole tensors."""
    *ops, _ = op.regions[0].blocks[0].operations
    names = (view.operation.name for view in ops)
    return all(n in ELEMENTWISE or n == "stablehlo.constant" for n in names)


def _is_read(less: ir.Block, operand: int) -> bool:
    pair = list(less.arguments)[2 * operand : 2 * operand + 2]
    return any(True for argument in pair for _ in argument.uses)


@dataclass(frozen=True)
class _Rows:
    """Tensors of `shape` as rows along `dimension`, one after the other."""

    shape: tuple[int, ...]
    dimension: int

    @property
    def count(self) -> int:
        return self.shape[self.dimension]

    @property
    def batch(self) -> int:
        return prod(self.shape) // self.count

    @property
    def stages(self) -> int:
        return _stages(self.count)

    @property
    def width(self) -> int:
        return 2**self.stages

    @property
    def index(self) -> ir.Type:
        return index_type(self.batch * self.width)

    def flat(self, x: Value) -> Value:
        """All rows, as long as they are."""
        return hlo.reshape(hlo.transpose(x, self._order()), [prod(self.shape)])

    def filled(self, x: Value) -> Value:
        """All rows, each as long as a power of two."""
        x = hlo.reshape(hlo.transpose(x, self._order()), [self.batch, self.count])
        if self.width > self.count:
            zero = hlo.scalar(0, hlo.element_type(x))
            x = hlo.pad(x, zero, [0, 0], [0, self.width - self.count])
        return hlo.reshape(x, [self.batch * self.width])

    def cut(self, x: Value) -> Value:
        """`[batch, count]` of what was filled."""
        x = hlo.reshape(x, [self.batch, self.width])
        if self.width == self.count:
            return x
        return hlo.slice_(x, [0, 0], [self.batch, self.count])

    def restored(self, x: Value) -> Value:
        """The tensor of filled or flat rows."""
        if hlo.size(x) == self.batch * self.width:
            x = self.cut(x)
        x = hlo.reshape(x, [self.shape[d] for d in self._order()])
        return hlo.transpose(
            x, [self._order().index(d) for d in range(len(self.shape))]
        )

    def along(self) -> Value:
        """The position in its row of each element of what is filled."""
        places = hlo.iota(hlo.tensor([self.batch, self.width], self.index), 1)
        return hlo.reshape(places, [self.batch * self.width])

    def _order(self) -> list[int]:
        others = [d for d in range(len(self.shape)) if d != self.dimension]
        return [*others, self.dimension]


def _moved(
    op: ir.Operation, operand: int, x: Value, rows: _Rows, places: Value
) -> Value:
    """What goes along with a sort, by the positions from which its elements came."""
    if position_in([x], rows.dimension) is not None:
        return hlo.convert(rows.restored(places), hlo.element_type(x))
    at = rows.cut(places)
    start = hlo.multiply(hlo.iota(at.type, 0), hlo.constant_like(at, rows.count))
    at = hlo.reshape(hlo.add(at, start), [prod(rows.shape)])
    return rows.restored(_taken(rows.flat(x), at))


def _taken(x: Value, at: Value) -> Value:
    windows = Windows((), (0,), (), (), (0,), 1)
    return gather(x, at, windows, [1])


def _sorted(
    rows: _Rows, less: ir.Block, read: Sequence[int], keys: Sequence[Value]
) -> list[Value]:
    """The positions from which the elements came, and the keys in order."""
    index = hlo.tensor((), rows.index)
    start = [hlo.zeros(index), hlo.zeros(index), rows.along(), *keys]
    types = [x.type for x in start]
    loop = hlo.op("while", start, types, regions=2)

    def step(stage: Value, bit: Value, *carried: Value) -> list[Value]:
        kept = _exchanged(rows, less, read, stage, bit, carried)
        one = hlo.constant_like(bit, 1)
        ends = hlo.compare("EQ", bit, hlo.zeros(bit.type))
        following = hlo.add(stage, one)
        return [
            hlo.select(ends, following, stage),
            hlo.select(ends, following, hlo.subtract(bit, one)),
            *kept,
        ]

    def goes_on(stage: Value, *_: Value) -> Value:
        return hlo.compare("LT", stage, hlo.constant(rows.stages, index))

    hlo.body(loop, types, goes_on)
    hlo.body(loop, types, step, region=1)
    return list(loop.results)[2:]


def _exchanged(
    rows: _Rows,
    less: ir.Block,
    read: Sequence[int],
    stage: Value,
    bit: Value,
    carried: Sequence[Value],
) -> list[Value]:
    """One pass: each element, or its partner `2^bit` away where that belongs here."""
    shape = hlo.shape_of(carried[0])

    def spread(scalar: Value) -> Value:
        return hlo.splat(scalar, shape)

    at = hlo.iota(hlo.tensor(shape, rows.index), 0)
    stride = hlo.shift_left(hlo.constant_like(bit, 1), bit)
    partner = hlo.xor(at, spread(stride))
    others = [_taken(x, partner) for x in carried]
    # In each run of 2^(stage + 1), the bit that says whether it is to descend.
    run = spread(hlo.add(stage, hlo.constant_like(stage, 1)))
    descends = hlo.shift_right_logical(rows.along(), run)
    is_second = hlo.shift_right_logical(at, spread(bit))
    odd = hlo.and_(hlo.xor(descends, is_second), hlo.constant_like(at, 1))
    flipped = hlo.compare("EQ", odd, hlo.constant_like(at, 1))
    later = hlo.compare("GT", carried[0], others[0])
    ahead = _goes_ahead(rows, less, read, later, carried, others)
    swap = reduce(hlo.xor, (later, ahead, flipped))
    return [hlo.select(swap, y, x) for x, y in zip(carried, others, strict=True)]


def _goes_ahead(
    rows: _Rows,
    less: ir.Block,
    read: Sequence[int],
    later: Value,
    carried: Sequence[Value],
    others: Sequence[Value],
) -> Value:
    """Whether of two elements the one that stood later is to stand first.

    Both partners ask the same, so that none is lost whatever the comparator says.
    """
    arguments = [later] * len(less.arguments)
    for i, x, y in zip(read, carried[1:], others[1:], strict=True):
        arguments[2 * i] = hlo.select(later, x, y)
        arguments[2 * i + 1] = hlo.select(later, y, x)
    (ahead,) = inline(less, arguments)
    if rows.width == rows.count:
        return ahead
    place = hlo.maximum(carried[0], others[0])
    inside = hlo.compare("LT", place, hlo.constant_like(place, rows.count))
    return hlo.and_(ahead, inside)
