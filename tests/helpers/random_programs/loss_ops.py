"""The ops of `random_losses`: each gives the next hidden value, or None."""

import random
from collections.abc import Callable, Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, gather, scatter

Value = ir.Value
Op = Callable[["Losses"], Value | None]

WIDE, CLASSES = 4, 6
MODULUS = 5.0


class Losses:
    """Grows a loss at the insertion point; `at` is where a value has the batch."""

    def __init__(self, rng: random.Random, batch: int, block: ir.Block) -> None:
        self.rng, self.batch, self.block = rng, batch, block
        self.hidden: list[Value] = []
        self.data: list[Value] = []
        self.labels: list[Value] = []
        self.at: dict[Value, int | None] = {}
        self.arguments: list[tuple[Value, str]] = []
        self.f32 = ir.F32Type.get()
        self.i32 = ir.IntegerType.get_signless(32)

    def argument(
        self, shape: Sequence[int], role: str, element: ir.Type | None = None
    ) -> Value:
        """One more argument of the function."""
        type_ = hlo.tensor(shape, element or self.f32)
        value = self.block.add_argument(type_, ir.Location.unknown())
        self.arguments.append((value, role))
        is_batch = role == "data" and tuple(shape[:1]) == (self.batch,)
        self.at[value] = 0 if is_batch else None
        return value

    def parameters(self) -> list[Value]:
        """All there are."""
        return [value for value, role in self.arguments if role == "param"]

    def param(self, *shape: int) -> Value:
        """A parameter of this shape, now and then one that is used already."""
        known = [v for v in self.parameters() if tuple(hlo.shape_of(v)) == shape]
        if known and self.rng.random() < 0.3:
            return self.rng.choice(known)
        return self.argument(shape, "param")

    def last(self) -> Value:
        """A hidden value, the last one most often."""
        return self.rng.choice([*self.hidden[-3:], self.hidden[-1], self.hidden[-1]])

    def batched(self, values: Sequence[Value], rank: int = 1) -> Value | None:
        """One of the last values of which each example has a row."""
        fit = [v for v in values[-4:] if self.at.get(v) is not None]
        fit = [v for v in fit if len(hlo.shape_of(v)) >= rank]
        return self.rng.choice(fit) if fit else None

    def like(self, made: Value, x: Value, move: int = 0) -> Value:
        """Note that `made` has the batch where `x` has it, `move` dimensions on."""
        at = self.at.get(x)
        self.at[made] = None if at is None else at + move
        return made

    def small(self, x: Value) -> Value:
        """Bounded integers again."""
        return self.like(hlo.remainder(x, hlo.constant_like(x, MODULUS)), x)

    def joined(self, x: Value, y: Value) -> Value:
        """Sum or product, bounded, of two tensors of one shape."""
        combine = self.rng.choice((hlo.add, hlo.multiply, hlo.subtract))
        return self.small(self.like(combine(x, y), x))

    def feature(self, x: Value, size: int | None = None) -> int | None:
        """A dimension that is not the batch's."""
        fit = [d for d, n in enumerate(hlo.shape_of(x)) if size in (None, n)]
        fit = [d for d in fit if d != self.at.get(x)]
        return self.rng.choice(fit) if fit else None

    def counted(self) -> Value:
        """Which examples count, by a label."""
        k = self.rng.choice(self.labels)
        how = self.rng.choice(("GE", "NE", "LT"))
        return hlo.compare(how, k, hlo.constant_like(k, self.rng.randrange(3)))

    def floats(self, x: Value) -> Value:
        """Numbers for integers or truths."""
        return hlo.convert(x, self.f32)


def _along(x: Value, shape: Sequence[int], dim: int) -> Value:
    return hlo.broadcast_in_dim(x, shape, [dim])


# --- of each example ---


def unary(p: Losses) -> Value:
    x = p.last()
    relu = hlo.maximum(x, hlo.zeros(x.type))
    return p.like(p.rng.choice((relu, hlo.negate(x), hlo.abs(x))), x)


def binary(p: Losses) -> Value:
    x = p.last()
    same = [y for y in [*p.hidden, *p.data] if y.type == x.type]
    return p.joined(x, p.rng.choice([y for y in same if p.at.get(y) == p.at.get(x)]))


def bias(p: Losses) -> Value | None:
    x = p.last()
    if (d := p.feature(x)) is None:
        return None
    shape = hlo.shape_of(x)
    return p.joined(x, _along(p.param(shape[d]), shape, d))


def linear(p: Losses, table: Value | None = None) -> Value | None:
    """One dimension through a matrix; the new one comes last."""
    x = p.last()
    if (d := p.feature(x, hlo.shape_of(table)[0] if table else None)) is None:
        return None
    wide = p.rng.choice((WIDE, WIDE, CLASSES))
    w = p.param(hlo.shape_of(x)[d], wide) if table is None else table
    y = hlo.dot_general(x, w, contract=([d], [0]))
    return p.small(p.like(y, x, -(d < (p.at.get(x) or 0))))


def transposed(p: Losses) -> Value:
    x = p.last()
    order = list(range(len(hlo.shape_of(x))))
    p.rng.shuffle(order)
    made, at = hlo.transpose(x, order), p.at.get(x)
    p.at[made] = None if at is None else order.index(at)
    return made


def divided(p: Losses) -> Value | None:
    """One dimension becomes two."""
    x = p.last()
    if (d := p.feature(x, WIDE)) is None:
        return None
    shape = list(hlo.shape_of(x))
    shape[d : d + 1] = [2, WIDE // 2]
    return p.like(hlo.reshape(x, shape), x, d < (p.at.get(x) or 0))


def masked(p: Losses) -> Value | None:
    if (x := p.batched(p.hidden)) is None:
        return None
    mask = _along(p.counted(), hlo.shape_of(x), p.at[x] or 0)
    other = p.rng.choice((hlo.zeros(x.type), hlo.negate(x)))
    return p.like(hlo.select(mask, x, other), x)


def by_label(p: Losses) -> Value | None:
    if (x := p.batched(p.hidden)) is None:
        return None
    k = p.floats(p.rng.choice(p.labels))
    return p.joined(x, _along(k, hlo.shape_of(x), p.at[x] or 0))


def with_data(p: Losses) -> Value | None:
    """Data again, or a table of it, in a later stage."""
    x, y = p.batched(p.hidden), p.rng.choice(p.data)
    if p.at.get(y) is None:
        return linear(p, y) if len(hlo.shape_of(y)) == 2 else None
    if x is None:
        return None
    row = hlo.reduce_sum(y, range(1, len(hlo.shape_of(y))))
    return p.joined(x, _along(row, hlo.shape_of(x), p.at[x] or 0))


def embedded(p: Losses) -> Value:
    """Rows of a table, looked up or by a product with ones."""
    k, table = p.rng.choice(p.labels), p.param(CLASSES, WIDE)
    if p.rng.random() < 0.5:
        windows = Windows((1,), (0,), (), (), (0,), 1)
        made = gather(table, k, windows, [1, WIDE])
    else:
        spread = _along(k, [p.batch, CLASSES], 0)
        hot = hlo.compare("EQ", spread, hlo.iota(spread.type, 1))
        made = hlo.dot_general(p.floats(hot), table, contract=([1], [0]))
    p.at[made] = 0
    return made


def picked(p: Losses) -> Value | None:
    """`x[arange, labels]`, or what is added there."""
    if (x := p.batched(p.hidden, 2)) is None or p.at[x]:
        return None
    labels = hlo.reshape(p.rng.choice(p.labels), [p.batch, 1])
    places = hlo.concatenate([hlo.iota(labels.type, 0), labels], 1)
    shape = hlo.shape_of(x)
    inside = tuple(range(1, len(shape) - 1))
    windows = Windows(inside, (0, 1), (), (), (0, 1), 1)
    if p.rng.random() < 0.6:
        return p.like(gather(x, places, windows, [1, 1, *shape[2:]]), x)
    rows = hlo.reduce_sum(x, [1])
    return p.small(p.like(scatter(x, places, rows, windows, hlo.add), x))


def looped(p: Losses) -> Value:
    x = p.last()
    i32 = hlo.tensor((), p.i32)
    types = [i32, x.type]
    made = hlo.op("while", [hlo.zeros(i32), x], types, regions=2)
    hlo.body(made, types, lambda k, _: hlo.compare("LT", k, hlo.constant(2, i32)))

    def step(k: Value, v: Value) -> list[Value]:
        return [hlo.add(k, hlo.constant(1, i32)), p.small(hlo.add(v, x))]

    hlo.body(made, types, step, region=1)
    return p.like(made.results[1], x)


def numbered(p: Losses) -> Value | None:
    """The places of examples, and a sum over them, times a parameter's."""
    if (x := p.batched(p.hidden)) is None:
        return None
    shape = hlo.shape_of(x)
    count = hlo.iota(hlo.tensor([p.batch], p.f32), 0)
    if p.rng.random() < 0.5:
        return p.joined(x, _along(count, shape, p.at[x] or 0))
    weight = hlo.sum_all(p.rng.choice(p.parameters()))
    count = p.small(hlo.multiply(count, hlo.splat(weight, [p.batch])))
    return p.joined(x, hlo.splat(p.small(hlo.sum_all(count)), shape))


# --- sums over the batch, of data alone ---


def number(p: Losses) -> Value:
    """A count of labels, a sum, an extremum, or a sum of what a sum was taken from."""
    x, way = p.rng.choice(p.data), p.rng.randrange(4)
    total = hlo.sum_all(p.floats(p.counted())) if way == 0 else hlo.sum_all(x)
    if way == 2 and hlo.shape_of(x):
        low = hlo.scalar(float("-inf"), p.f32)
        total = hlo.reduce(x, low, range(len(hlo.shape_of(x))), hlo.maximum)
    if way == 3:
        less = p.small(hlo.subtract(x, hlo.splat(total, hlo.shape_of(x))))
        total = hlo.sum_all(hlo.multiply(less, less))
    return p.small(total)


def by_number(p: Losses) -> Value:
    x = p.last()
    return p.joined(x, hlo.splat(number(p), hlo.shape_of(x)))


def chosen(p: Losses) -> Value:
    """One of two ways, by a number of data alone."""
    x = p.last()
    pred = hlo.compare("GT", number(p), hlo.scalar(0.0, p.f32))
    if p.rng.random() < 0.4:
        return p.like(hlo.select(pred, x, hlo.negate(x)), x)
    made = hlo.op("if", [pred], [x.type], regions=2)
    hlo.body(made, [], lambda: hlo.negate(x))
    hlo.body(made, [], lambda: p.small(hlo.add(x, x)), region=1)
    return p.like(made.results[0], x)


def row(p: Losses) -> Value | None:
    """A sum over examples, or one of them: along a feature, or along the batch."""
    x, y = p.last(), p.batched(p.data, 2)
    if y is None:
        return None
    shape, wide = hlo.shape_of(x), hlo.shape_of(y)[-1]
    if p.rng.random() < 0.7:
        v = p.small(hlo.reduce_sum(y, range(len(hlo.shape_of(y)) - 1)))
    else:
        one = hlo.slice_(y, [2, *[0] * (len(hlo.shape_of(y)) - 1)], hlo.shape_of(y))
        v = p.small(hlo.reduce_sum(one, range(len(hlo.shape_of(y)) - 1)))
    at = p.at.get(x)
    if at is not None and p.batch % wide == 0 and p.rng.random() < 0.5:
        along = hlo.broadcast_in_dim(v, [p.batch // wide, wide], [1])
        return p.joined(x, _along(hlo.reshape(along, [p.batch]), shape, at))
    d = p.feature(x, wide)
    return None if d is None else p.joined(x, _along(v, shape, d))


def covariance(p: Losses) -> Value | None:
    if (y := p.batched(p.data, 2)) is None or len(hlo.shape_of(y)) != 2:
        return None
    return linear(p, p.small(hlo.dot_general(y, y, contract=([0], [0]))))


def frequent(p: Losses) -> Value | None:
    """How often each example's label occurs."""
    if (x := p.batched(p.hidden)) is None:
        return None
    k = p.rng.choice(p.labels)
    windows = Windows((), (0,), (), (), (0,), 1)
    ones = hlo.constant(1.0, hlo.tensor([p.batch], p.f32))
    none = hlo.constant(0.0, hlo.tensor([CLASSES], p.f32))
    found = scatter(none, k, ones, windows, hlo.add)
    own = gather(found, k, windows, [1])
    return p.joined(x, _along(own, hlo.shape_of(x), p.at[x] or 0))


# --- between examples ---


def moved(p: Losses) -> Value | None:
    """Examples in another order, half of them, or two of them as one."""
    if (x := p.batched(p.hidden)) is None:
        return None
    at, shape, way = p.at[x] or 0, list(hlo.shape_of(x)), p.rng.randrange(4)
    if way == 0:
        return p.like(hlo.reverse(x, [at]), x)
    if way == 1:
        return hlo.concatenate([x, x], at)
    if way == 2:
        shape[at : at + 1] = p.rng.choice(([2, p.batch // 2], [p.batch // 2, 2]))
        return hlo.reshape(x, shape)
    shape[at] //= 2
    return hlo.slice_(x, [0] * len(shape), shape)


def centred(p: Losses) -> Value | None:
    """Less the sum over examples."""
    if (x := p.batched(p.hidden)) is None:
        return None
    at, shape = p.at[x] or 0, hlo.shape_of(x)
    total = hlo.reduce_sum(x, [at])
    others = [d for d in range(len(shape)) if d != at]
    return p.joined(x, hlo.broadcast_in_dim(total, shape, others))


OPS: tuple[Op, ...] = (
    *(unary, binary, binary, bias, bias, linear, linear, linear, transposed, divided),
    *(masked, masked, by_label, with_data, with_data, embedded, picked, picked),
    *(looped, numbered, by_number, by_number, chosen, chosen, row, row, row),
    *(covariance, frequent, moved, centred),
)


def scalar(p: Losses, x: Value) -> Value:
    """A sum, a mean over what counts, a sum of squares; times a number of data."""
    way, at = p.rng.randrange(5), p.at.get(x)
    if way == 0 and at is not None:
        others = [d for d in range(len(hlo.shape_of(x))) if d != at]
        rows, mask = hlo.reduce_sum(x, others), p.counted()
        total = hlo.sum_all(hlo.select(mask, rows, hlo.zeros(rows.type)))
        count = hlo.sum_all(p.floats(mask))
        return hlo.divide(total, hlo.maximum(count, hlo.scalar(1.0, p.f32)))
    if way == 1:
        return hlo.sum_all(hlo.multiply(x, x))
    if way == 2:
        return hlo.multiply(hlo.sum_all(x), number(p))
    if way == 3:
        return hlo.multiply(hlo.sum_all(x), p.param())
    return hlo.sum_all(x)
