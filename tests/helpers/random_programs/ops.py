"""Random StableHLO ops, grown one by one: what random programs are made of."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, gather, scatter, sort
from pcp.dialect.hlo_windows import Window, reduce_window

SIZES = (1, 2, 3, 4, 5, 6, 8, 12)
MODULUS = 5.0

Value = ir.Value


class Program:
    """Grows a function op by op at the insertion point."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values: list[Value] = []

    def pick(self, rank: Callable[[int], bool] = lambda r: True) -> Value | None:
        """A value of a suitable rank, later ones more often."""
        fit = [v for v in self.values if rank(len(hlo.shape_of(v)))]
        return self.rng.choice(fit[-4:]) if fit else None

    def any(self) -> Value:
        """Any value, later ones more often."""
        return self.rng.choice(self.values[-4:])

    def small(self, x: Value) -> Value:
        """Bounded integers again."""
        return hlo.remainder(x, hlo.constant_like(x, MODULUS))

    def indices(self, shape: Sequence[int]) -> Value:
        """Some integers, partly out of range."""
        count = int(np.prod(shape)) if shape else 1
        numbers = np.array([self.rng.randrange(-2, 9) for _ in range(count)], np.int32)
        i32 = ir.IntegerType.get_signless(32)
        dense = ir.DenseElementsAttr.get(
            numbers.reshape(shape), type=i32, shape=list(shape)
        )
        return hlo.op("constant", [], [hlo.tensor(shape, i32)], value=dense).result


# --- one function an op: the new value, or None where nothing fits ---


def unary(p: Program) -> Value | None:
    x = p.any()
    return p.rng.choice((hlo.negate, hlo.abs, hlo.sign))(x)


def binary(p: Program) -> Value | None:
    x = p.any()
    same = [v for v in p.values if v.type == x.type]
    build = p.rng.choice((hlo.add, hlo.multiply, hlo.maximum, hlo.subtract))
    return p.small(build(x, p.rng.choice(same)))


def scaled(p: Program) -> Value | None:
    x = p.any()
    return p.small(hlo.multiply(x, hlo.constant_like(x, 2.0)))


def masked(p: Program) -> Value | None:
    x = p.any()
    return hlo.select(hlo.compare("GT", x, hlo.zeros(x.type)), x, hlo.negate(x))


def transpose(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 2)) is None:
        return None
    order = list(range(len(hlo.shape_of(x))))
    p.rng.shuffle(order)
    return hlo.transpose(x, order)


def reshape(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    shape = list(hlo.shape_of(x))
    d = p.rng.randrange(len(shape))
    if len(shape) > 1 and p.rng.random() < 0.5:
        d = min(d, len(shape) - 2)
        shape[d : d + 2] = [shape[d] * shape[d + 1]]
    else:
        divisors = [n for n in range(1, shape[d] + 1) if shape[d] % n == 0]
        n = p.rng.choice(divisors)
        shape[d : d + 1] = [n, shape[d] // n]
    return hlo.reshape(x, shape)


def broadcast(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r <= 2)) is None:
        return None
    shape = list(hlo.shape_of(x))
    at = p.rng.randrange(len(shape) + 1)
    dims = [d if d < at else d + 1 for d in range(len(shape))]
    shape.insert(at, p.rng.choice(SIZES[1:5]))
    for d in dims:
        if shape[d] == 1 and p.rng.random() < 0.7:
            shape[d] = p.rng.choice((2, 4))
    return hlo.broadcast_in_dim(x, shape, dims)


def reduce(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    rank = len(hlo.shape_of(x))
    dims = p.rng.sample(range(rank), p.rng.randrange(1, rank + 1))
    element = hlo.element_type(x)
    if p.rng.random() < 0.3:
        low = hlo.scalar(float("-inf"), element)
        return hlo.reduce(x, low, dims, hlo.maximum)
    start = hlo.scalar(0.0 if p.rng.random() < 0.8 else 1.0, element)
    return p.small(hlo.reduce(x, start, dims, hlo.add))


def dot(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    shape = hlo.shape_of(x)
    d = p.rng.randrange(len(shape))
    others = [
        (v, e)
        for v in p.values
        for e, n in enumerate(hlo.shape_of(v))
        if n == shape[d] and len(hlo.shape_of(v)) + len(shape) <= 6
    ]
    if not others:
        return None
    y, e = p.rng.choice(others)
    batch = ([], [])
    pairs = [
        (i, j)
        for i, n in enumerate(shape)
        for j, m in enumerate(hlo.shape_of(y))
        if n == m and i != d and j != e
    ]
    if pairs and p.rng.random() < 0.5:
        i, j = p.rng.choice(pairs)
        batch = ([i], [j])
    return p.small(hlo.dot_general(x, y, batch=batch, contract=([d], [e])))


def concatenate(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    same = [v for v in p.values if v.type == x.type]
    return hlo.concatenate(
        [x, p.rng.choice(same)], p.rng.randrange(len(hlo.shape_of(x)))
    )


def slice_(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    shape = hlo.shape_of(x)
    d = p.rng.randrange(len(shape))
    start, limit, strides = [0] * len(shape), list(shape), [1] * len(shape)
    start[d] = p.rng.randrange(shape[d])
    limit[d] = p.rng.randrange(start[d] + 1, shape[d] + 1)
    strides[d] = p.rng.choice((1, 1, 2))
    return hlo.slice_(x, start, limit, strides)


def pad(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    rank = len(hlo.shape_of(x))
    low, high, interior = [0] * rank, [0] * rank, [0] * rank
    d = p.rng.randrange(rank)
    low[d], high[d] = p.rng.choice((0, 1, 2)), p.rng.choice((-0, 1))
    interior[d] = p.rng.choice((0, 0, 1))
    return hlo.pad(x, hlo.scalar(3.0, hlo.element_type(x)), low, high, interior)


def reverse(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    return hlo.reverse(x, [p.rng.randrange(len(hlo.shape_of(x)))])


def dynamic_slice(p: Program) -> Value | None:
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    shape = hlo.shape_of(x)
    starts = [p.indices(()) for _ in shape]
    sizes = list(shape)
    d = p.rng.randrange(len(shape))
    sizes[d] = p.rng.randrange(1, shape[d] + 1)
    part = hlo.dynamic_slice(x, starts, sizes)
    if p.rng.random() < 0.5:
        return part
    return hlo.dynamic_update_slice(x, hlo.negate(part), [p.indices(()) for _ in shape])


def lookup(p: Program) -> Value | None:
    """Rows of a matrix, and the sum of updates to rows: an embedding and its VJP."""
    if (x := p.pick(lambda r: r == 2)) is None:
        return None
    shape = hlo.shape_of(x)
    batch = p.rng.choice(([4], [2, 3], [5]))
    windows = Windows((len(batch),), (0,), (), (), (0,), len(batch))
    indices = p.indices(batch)
    rows = gather(x, indices, windows, [1, shape[1]])
    if p.rng.random() < 0.4:
        return rows
    zeros = hlo.zeros(x.type) if p.rng.random() < 0.5 else x
    return p.small(scatter(zeros, indices, rows, windows, hlo.add))


def sorted_(p: Program) -> Value | None:
    """By a comparator with a constant, from outside of it or inside; one operand,
    or another one along with it."""
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    others = [v for v in p.values if v.type == x.type]
    operands = [x, p.rng.choice(others)] if p.rng.random() < 0.5 else [x]
    element, number = hlo.element_type(x), float(p.rng.randrange(-1, 3))
    outside = hlo.scalar(number, element) if p.rng.random() < 0.6 else None
    how, way = p.rng.choice((hlo.minimum, hlo.subtract)), p.rng.choice(("LT", "GT"))

    def less(a: Value, b: Value, *_: Value) -> Value:
        bound = hlo.scalar(number, element) if outside is None else outside
        keys = (how(v, bound) for v in (a, b))
        if how is hlo.subtract:
            keys = (hlo.abs(k) for k in keys)
        return hlo.compare(way, *keys)

    made = sort(operands, p.rng.randrange(len(hlo.shape_of(x))), less)
    return p.rng.choice(made)


def iota(p: Program) -> Value | None:
    x = p.pick(lambda r: r >= 1)
    if x is None:
        return None
    counted = hlo.iota(x.type, p.rng.randrange(len(hlo.shape_of(x))))
    return p.small(hlo.add(x, counted))


def window(p: Program) -> Value | None:
    """A moving sum along one dimension."""
    if (x := p.pick(lambda r: r >= 1)) is None:
        return None
    shape = hlo.shape_of(x)
    d = p.rng.randrange(len(shape))
    ones = [1] * len(shape)
    sizes, strides = list(ones), list(ones)
    sizes[d] = min(shape[d], p.rng.choice((2, 3)))
    strides[d] = p.rng.choice((1, 2))
    padding = [(0, 0)] * len(shape)
    padding[d] = (p.rng.choice((0, 1)), p.rng.choice((0, 1)))
    how = Window(tuple(sizes), tuple(strides), tuple(ones), tuple(ones), tuple(padding))
    zero = hlo.scalar(0.0, hlo.element_type(x))
    return p.small(reduce_window([x], [zero], how, hlo.add)[0])


def loop(p: Program) -> Value | None:
    """Three rounds of x ← small(x + c) with a captured c."""
    x = p.any()
    same = [v for v in p.values if v.type == x.type]
    captured = p.rng.choice(same)
    i32 = hlo.tensor((), ir.IntegerType.get_signless(32))
    types = [i32, x.type]
    made = hlo.op("while", [hlo.zeros(i32), x], types, regions=2)
    hlo.body(made, types, lambda k, _: hlo.compare("LT", k, hlo.constant(3, i32)))
    hlo.body(
        made,
        types,
        lambda k, v: [hlo.add(k, hlo.constant(1, i32)), p.small(hlo.add(v, captured))],
        region=1,
    )
    return made.results[1]


def branches(p: Program) -> Value | None:
    """One of two ways, by a number that all members know."""
    x = p.any()
    same = [v for v in p.values if v.type == x.type]
    other = p.rng.choice(same)
    index = hlo.constant(
        p.rng.randrange(3), hlo.tensor((), ir.IntegerType.get_signless(32))
    )
    made = hlo.op("case", [index], [x.type], regions=2)
    hlo.body(made, [], lambda: hlo.negate(other))
    hlo.body(made, [], lambda: p.small(hlo.add(x, other)), region=1)
    return made.results[0]


OPS: tuple[Callable[[Program], Value | None], ...] = (
    *(unary, binary, scaled, masked, transpose, reshape, broadcast, reduce),
    *(dot, dot, dot, concatenate, slice_, pad, reverse, dynamic_slice, lookup),
    *(iota, window, loop, branches, binary, reduce, reshape, sorted_),
)
