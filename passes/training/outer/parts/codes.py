"""Tensors as few bits: what an outer algorithm sends in their place.

A code turns `[rows, columns]` of f32 into 32-bit words, a fixed number of them, and
back. Both are plain StableHLO, so that every member decodes the same bytes to the
same bits, and a sender knows exactly what the others will see of its tensor: what is
lost it keeps (error feedback).

Numbers that are not finite are not hidden: a NaN makes its row's levels NaN.
"""

from dataclasses import dataclass
from typing import Protocol

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, gather, scatter
from pcp.passes.core import loops

Value = ir.Value
WORD = 32
SIGMAS = 6.0


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(WORD)


def _f32() -> ir.Type:
    return ir.F32Type.get()


def as_words(x: Value) -> Value:
    """The bits of f32 numbers, in one row."""
    row = hlo.reshape(x, (hlo.size(x),))
    return hlo.bitcast_convert(row, hlo.like(row, element=_i32()))


def as_numbers(words: Value) -> Value:
    """f32 numbers of those bits."""
    return hlo.bitcast_convert(words, hlo.like(words, element=_f32()))


def words_of(count: int, bits: int) -> int:
    """Words that hold `count` numbers of so many bits."""
    return -(-count * bits // WORD)


def pack(x: Value, bits: int) -> Value:
    """Each row's integers, `bits` bits each, in words: `[rows, words]`."""
    rows, count = hlo.shape_of(x)
    each, words = WORD // bits, words_of(count, bits)
    if each * words > count:
        zero = hlo.scalar(0, _i32())
        x = hlo.pad(x, zero, [0, 0], [0, each * words - count])
    x = hlo.reshape(x, (rows, words, each))
    return hlo.reduce_sum(hlo.shift_left(x, _offsets(x, bits)), [2])


def unpack(words: Value, bits: int, count: int) -> Value:
    """The first `count` integers of `bits` bits in each row of words."""
    rows, width = hlo.shape_of(words)
    each = WORD // bits
    wide = hlo.broadcast_in_dim(words, (rows, width, each), (0, 1))
    shifted = hlo.shift_right_logical(wide, _offsets(wide, bits))
    found = hlo.and_(shifted, hlo.constant_like(shifted, (1 << bits) - 1))
    flat = hlo.reshape(found, (rows, width * each))
    return hlo.slice_(flat, [0, 0], [rows, count])


def _offsets(x: Value, bits: int) -> Value:
    return hlo.multiply(hlo.iota(x.type, 2), hlo.constant_like(x, bits))


class Code(Protocol):
    """One way to write `[rows, columns]` of f32 as words."""

    def words(self, rows: int, columns: int) -> int:
        """How many words it takes."""
        ...

    def encode(self, x: Value) -> Value:
        """The words, a row of them."""
        ...

    def decode(self, words: Value, rows: int, columns: int) -> Value:
        """What the words stand for."""
        ...


@dataclass(frozen=True)
class Plain:
    """The numbers as they are."""

    def words(self, rows: int, columns: int) -> int:
        """One each."""
        return rows * columns

    def encode(self, x: Value) -> Value:
        """Their bits."""
        return as_words(x)

    def decode(self, words: Value, rows: int, columns: int) -> Value:
        """The same numbers."""
        return hlo.reshape(as_numbers(words), (rows, columns))


@dataclass(frozen=True)
class TwoBits:
    """Two bits a number, and four levels for each row.

    Each row's range, its mean ± 6 σ, is cut into four bins of one width; a level is
    the mean of the numbers that fell into its bin.
    """

    def words(self, rows: int, columns: int) -> int:
        """Four levels a row, and sixteen numbers a word."""
        return rows * (4 + words_of(columns, 2))

    def encode(self, x: Value) -> Value:
        """Levels, then bins."""
        bins = self._bins(x)
        levels = [self._level(x, bins, k) for k in range(4)]
        table = hlo.concatenate(
            [hlo.reshape(v, (*hlo.shape_of(v), 1)) for v in levels], 1
        )
        packed = pack(bins, 2)
        return hlo.concatenate(
            [as_words(table), hlo.reshape(packed, (hlo.size(packed),))], 0
        )

    def decode(self, words: Value, rows: int, columns: int) -> Value:
        """Each number's level."""
        levels = hlo.slice_(words, [0], [4 * rows])
        table = hlo.reshape(as_numbers(levels), (rows, 4))
        packed = hlo.slice_(words, [4 * rows], [self.words(rows, columns)])
        packed = hlo.reshape(packed, (rows, words_of(columns, 2)))
        bins = unpack(packed, 2, columns)
        shape, found = (rows, columns), None
        for k in range(4):
            level = hlo.slice_(table, [0, k], [rows, k + 1])
            level = hlo.broadcast_in_dim(hlo.reshape(level, (rows,)), shape, (0,))
            here = hlo.compare("EQ", bins, hlo.constant_like(bins, k), "SIGNED")
            found = level if found is None else hlo.select(here, level, found)
        assert found is not None
        return found

    def _bins(self, x: Value) -> Value:
        centred = hlo.subtract(x, _rows_mean(x))
        sigma = hlo.sqrt(_rows_mean(hlo.multiply(centred, centred)))
        edge = hlo.multiply(sigma, hlo.constant_like(sigma, SIGMAS / 2))
        above = [
            hlo.convert(hlo.compare("GE", centred, bound, "FLOAT"), _i32())
            for bound in (hlo.negate(edge), hlo.zeros(x.type), edge)
        ]
        return hlo.add(hlo.add(above[0], above[1]), above[2])

    def _level(self, x: Value, bins: Value, k: int) -> Value:
        here = hlo.compare("EQ", bins, hlo.constant_like(bins, k), "SIGNED")
        total = hlo.reduce_sum(hlo.select(here, x, hlo.zeros(x.type)), [1])
        count = hlo.reduce_sum(hlo.convert(here, _f32()), [1])
        return hlo.divide(total, hlo.maximum(count, hlo.constant_like(count, 1.0)))


def _rows_mean(x: Value) -> Value:
    """Each row's mean, at each of its places."""
    total = hlo.reduce_sum(x, [1])
    mean = hlo.multiply(total, hlo.constant_like(total, 1 / hlo.shape_of(x)[1]))
    return hlo.broadcast_in_dim(mean, hlo.shape_of(x), (0,))


@dataclass(frozen=True)
class TopK:
    """The `k` numbers of largest magnitude in each row, their places, zeros else.

    Of equal ones the first count. Places take 12 bits, so that a row has 4096 numbers
    at most; `values` is how the chosen numbers are written.
    """

    k: int
    values: Code

    def words(self, rows: int, columns: int) -> int:
        """Places in a byte and a half each, then the values."""
        return rows * sum(self._planes()) + self.values.words(rows, self.k)

    def _planes(self) -> tuple[int, int]:
        return words_of(self.k, 8), words_of(self.k, 4)

    def encode(self, x: Value) -> Value:
        """Places, then values."""
        place, values = chosen(x, self.k)
        low = hlo.and_(place, hlo.constant_like(place, 255))
        high = hlo.shift_right_logical(place, hlo.constant_like(place, 8))
        planes = [pack(low, 8), pack(high, 4)]
        rows = [hlo.reshape(p, (hlo.size(p),)) for p in planes]
        return hlo.concatenate([*rows, self.values.encode(values)], 0)

    def decode(self, words: Value, rows: int, columns: int) -> Value:
        """Zeros, and the values at their places."""
        one, two = (rows * n for n in self._planes())
        low = hlo.reshape(hlo.slice_(words, [0], [one]), (rows, one // rows))
        high = hlo.reshape(hlo.slice_(words, [one], [one + two]), (rows, two // rows))
        upper = unpack(high, 4, self.k)
        upper = hlo.shift_left(upper, hlo.constant_like(upper, 8))
        place = hlo.or_(unpack(low, 8, self.k), upper)
        rest = hlo.slice_(words, [one + two], [self.words(rows, columns)])
        return spread(place, self.values.decode(rest, rows, self.k), columns)


def chosen(x: Value, k: int) -> tuple[Value, Value]:
    """Places (i32) and values of each row's `k` largest magnitudes, by place."""
    magnitude = hlo.bitcast_convert(hlo.abs(x), hlo.like(x, element=_i32()))
    least = _across(_kth_largest(magnitude, k), magnitude)
    above = hlo.compare("GT", magnitude, least, "SIGNED")
    equal = hlo.compare("EQ", magnitude, least, "SIGNED")
    room = hlo.subtract(hlo.constant_like(_count(above), k), _count(above))
    first = hlo.compare("LE", running_count(equal), _across(room, magnitude), "SIGNED")
    taken = hlo.or_(above, hlo.and_(equal, first))
    place = _reached(running_count(taken), k)
    return place, gather(x, _cells(place), _CELL, [1, 1])


def spread(place: Value, values: Value, columns: int) -> Value:
    """`[rows, columns]` of zeros with `values` at `place`, which are all different.

    What has no place in a row is left out.
    """
    rows, _ = hlo.shape_of(place)
    zeros = hlo.zeros(hlo.tensor((rows, columns), hlo.element_type(values)))
    return scatter(zeros, _cells(place), values, _CELL, hlo.add)


#: Numbers of a matrix, at indices of shape [rows, k, 2].
_CELL = Windows((), (0, 1), (), (), (0, 1), 2)


def _cells(place: Value) -> Value:
    """Row and column of each row's places."""
    parts = [hlo.iota(place.type, 0), place]
    shape = (*hlo.shape_of(place), 1)
    return hlo.concatenate([hlo.reshape(part, shape) for part in parts], 2)


def _reached(counts: Value, k: int) -> Value:
    """Where each row, which counts up to `k` or more, first counts 1, 2, ... k; i32.

    By halves, from how many places in front count less: memory is that of the places,
    where one flag for each place of each of the k would be `k` times the row.
    """
    rows, columns = hlo.shape_of(counts)
    found = hlo.tensor((rows, k), _i32())
    one, last = (hlo.constant(n, found) for n in (1, columns))
    wanted = hlo.add(hlo.iota(found, 1), one)
    bits = columns.bit_length()
    half = hlo.constant(1 << (bits - 1), hlo.tensor((), _i32()))

    def narrow(i: Value, fewer: Value) -> list[Value]:
        step = hlo.splat(hlo.shift_right_logical(half, i), (rows, k))
        trial = hlo.minimum(hlo.add(fewer, step), last)
        here = gather(counts, _cells(hlo.subtract(trial, one)), _CELL, [1, 1])
        return [hlo.select(hlo.compare("LT", here, wanted, "SIGNED"), trial, fewer)]

    (place,) = loops.counted(bits, [hlo.zeros(found)], narrow)
    return place


def running_count(flags: Value) -> Value:
    """How many flags are up to each place of its row, the place included; i32.

    Products with triangles of ones: f32 counts exactly so far.
    """
    rows, columns = hlo.shape_of(flags)
    wide = min(64, columns)
    high = -(-columns // wide)
    x = _ones(flags)
    if high * wide > columns:
        x = hlo.pad(x, hlo.scalar(0.0, _f32()), [0, 0], [0, high * wide - columns])
    x = hlo.reshape(x, (rows, high, wide))
    within = hlo.dot_general(x, _triangle(wide, "LE"), contract=((2,), (0,)))
    totals = hlo.reduce_sum(x, [2])
    before = hlo.dot_general(totals, _triangle(high, "LT"), contract=((1,), (0,)))
    counts = hlo.add(within, hlo.broadcast_in_dim(before, (rows, high, wide), (0, 1)))
    flat = hlo.reshape(counts, (rows, high * wide))
    return hlo.convert(hlo.slice_(flat, [0, 0], [rows, columns]), _i32())


def _triangle(size: int, direction: str) -> Value:
    """Ones where the row's number stands in `direction` to the column's."""
    square = hlo.tensor((size, size), _i32())
    here = hlo.compare(direction, hlo.iota(square, 0), hlo.iota(square, 1), "SIGNED")
    return _ones(here)


def _ones(flags: Value) -> Value:
    """1.0 or 0.0; IREE 3.13 folds a conversion of flags into products, wrongly."""
    like = hlo.like(flags, element=_f32())
    return hlo.select(flags, hlo.constant(1.0, like), hlo.zeros(like))


def _kth_largest(x: Value, k: int) -> Value:
    """The k-th largest of each row of integers that are not negative: bit by bit."""
    rows, _ = hlo.shape_of(x)
    most = hlo.constant(1 << (WORD - 2), hlo.tensor((rows,), _i32()))

    def narrow(i: Value, best: Value) -> list[Value]:
        shift = hlo.splat(i, (rows,))
        trial = hlo.or_(best, hlo.shift_right_logical(most, shift))
        enough = hlo.compare("GE", x, _across(trial, x), "SIGNED")
        count = _count(enough)
        keep = hlo.compare("GE", count, hlo.constant_like(count, k), "SIGNED")
        return [hlo.select(keep, trial, best)]

    (found,) = loops.counted(WORD - 1, [hlo.zeros(most.type)], narrow)
    return found


def _count(flags: Value) -> Value:
    return hlo.reduce_sum(hlo.convert(flags, _i32()), [1])


def _across(x: Value, like: Value) -> Value:
    """One number a row at each of the row's places."""
    return hlo.broadcast_in_dim(x, hlo.shape_of(like), (0,))
