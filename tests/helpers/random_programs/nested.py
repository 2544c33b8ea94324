"""Ops with programs in them: loops and branches by numbers that the data say, in each
other, with stops and sorts inside. More of what random programs are made of."""

from collections.abc import Callable, Sequence

from helpers.random_programs.ops import OPS, Program, Value

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import sort
from pcp.passes.core.rewriting import STOP

#: Programs within programs.
DEPTH = 2


def stop(x: Value) -> Value:
    """The value, of which nothing is differentiated."""
    return ir.Operation.create(STOP, [x.type], [x]).result


def stopped(p: Program) -> Value | None:
    """A value that is stopped, or one that goes straight through."""
    x = p.any()
    if p.rng.random() < 0.5:
        return stop(x)
    twice = hlo.multiply(x, hlo.constant_like(x, 2.0))
    return hlo.add(x, stop(p.small(twice)))


def nested(p: Program) -> Value | None:
    """One op with others in it."""
    return _control(p, p.any(), DEPTH)


def _number(p: Program, most: int) -> Value:
    """An integer below `most`, by a sum of any value."""
    total = hlo.sum_all(p.any())
    size = hlo.floor(hlo.abs(total))
    count = hlo.remainder(size, hlo.constant_like(size, float(most)))
    return hlo.convert(count, ir.IntegerType.get_signless(32))


def _control(p: Program, x: Value, depth: int) -> Value:
    return p.rng.choice((_chosen, _repeated))(p, x, depth)


def _chosen(p: Program, x: Value, depth: int) -> Value:
    """One of three ways, by a number of the data."""
    made = hlo.op("case", [_number(p, 3)], [x.type], regions=3)
    for region in range(3):
        hlo.body(made, [], lambda: _steps(p, x, depth - 1), region=region)
    return made.results[0]


def _repeated(p: Program, x: Value, depth: int) -> Value:
    """As many rounds as the data say, at most three."""
    rounds = _number(p, 4)
    types = [rounds.type, x.type]
    made = hlo.op("while", [hlo.zeros(rounds.type), x], types, regions=2)
    hlo.body(made, types, lambda k, _: hlo.compare("LT", k, rounds))

    def step(k: Value, v: Value) -> list[Value]:
        return [hlo.add(k, hlo.constant_like(k, 1)), _steps(p, v, depth - 1)]

    hlo.body(made, types, step, region=1)
    return made.results[1]


def _steps(p: Program, x: Value, depth: int) -> Value:
    """A few ops on `x` that keep its shape, with values from outside among them."""
    outside, p.values = p.values, [*p.values, x]
    for _ in range(p.rng.randrange(1, 4)):
        if depth and p.rng.random() < 0.4:
            x = _control(p, x, depth)
        else:
            x = p.rng.choice(_STEPS)(p, x)
        p.values.append(x)
    p.values = outside
    return x


def _with_another(p: Program, x: Value) -> Value:
    same = [v for v in p.values if v.type == x.type]
    build = p.rng.choice((hlo.add, hlo.multiply, hlo.subtract, hlo.maximum))
    return p.small(build(x, p.rng.choice(same)))


def _stopped(p: Program, x: Value) -> Value:
    return p.small(hlo.add(hlo.multiply(x, stop(x)), x))


def _masked(p: Program, x: Value) -> Value:
    mask = hlo.compare("GT", stop(x), hlo.zeros(x.type))
    return hlo.select(mask, x, hlo.negate(x))


def _ordered(p: Program, x: Value) -> Value:
    """By how far each is from a constant outside of the comparator."""
    bound = hlo.scalar(float(p.rng.randrange(-1, 3)), hlo.element_type(x))
    rank = len(hlo.shape_of(x))
    if not rank:
        return hlo.negate(x)

    def less(a: Value, b: Value, *_: Value) -> Value:
        return hlo.compare("LT", *(hlo.abs(hlo.subtract(v, bound)) for v in (a, b)))

    return sort([stop(x), x], p.rng.randrange(rank), less)[1]


_STEPS: Sequence[Callable[[Program, Value], Value]] = (
    *(_with_another, _with_another, _stopped, _masked, _ordered),
    lambda p, x: p.small(hlo.multiply(x, hlo.constant_like(x, 2.0))),
)

#: A third of them have programs inside, or stops.
NESTED: tuple[Callable[[Program], Value | None], ...] = (
    *OPS,
    *(nested, nested, nested, nested, nested, nested, stopped, stopped, stopped),
)
