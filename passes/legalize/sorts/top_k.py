"""`chlo.top_k` of few among many: the largest, so often, in the place of a sort."""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis.ranges import limits
from pcp.passes.core.rewriting import integer
from pcp.passes.legalize.sorts.network import passes

Value = ir.Value

#: Elements from which on the largest is looked for time and again.
MANY = 1024

#: Times that the largest is found while a network goes through all once.
AS_MANY = 3


def few_of_many(op: ir.Operation) -> Sequence[Value] | None:
    """The largest, k times, where a sort would go through all more often; else None.

    Floats are compared as integers, in IEEE 754's total order; what was found becomes
    the least integer.
    """
    (x,) = op.operands
    count, wanted = hlo.shape_of(x)[-1], integer(op, "k")
    element = hlo.element_type(x)
    real = hlo.is_float(element) and ir.FloatType(element).width >= 16
    if not real or count < MANY or wanted > AS_MANY * passes(count) or not hlo.size(x):
        return None
    keys = _ordered(x)
    found = _found(keys, wanted)
    return [_float(found[0], element), found[1]]


def _ordered(x: Value) -> Value:
    """Integers in the order of the floats, none of them the least."""
    width = ir.FloatType(hlo.element_type(x)).width
    word = ir.IntegerType.get_signless(width)
    bits = _turned(hlo.bitcast_convert(x, hlo.like(x, element=word)))
    wide = hlo.convert(bits, ir.IntegerType.get_signless(max(width, 32)))
    return hlo.maximum(wide, hlo.constant_like(wide, limits(wide.type)[0] + 1))


def _turned(bits: Value) -> Value:
    """The bits of negative numbers but the sign, and those of positive ones, as is."""
    width = ir.IntegerType(hlo.element_type(bits)).width
    last = hlo.constant_like(bits, width - 1)
    sign = hlo.shift_right_arithmetic(bits, last)
    return hlo.xor(bits, hlo.and_(sign, hlo.constant_like(bits, 2 ** (width - 1) - 1)))


def _float(keys: Value, element: ir.Type) -> Value:
    word = ir.IntegerType.get_signless(ir.FloatType(element).width)
    bits = _turned(hlo.convert(keys, word))
    return hlo.bitcast_convert(bits, hlo.like(bits, element=element))


def _found(keys: Value, wanted: int) -> Sequence[Value]:
    """The largest of the last dimension and their places, the first of equals first."""
    *rows, count = hlo.shape_of(keys)
    last, i32 = len(rows), ir.IntegerType.get_signless(32)
    element, index = hlo.element_type(keys), hlo.tensor((), i32)
    least = limits(keys.type)[0]
    values, places = (hlo.tensor((*rows, wanted), e) for e in (element, i32))
    types = [index, keys.type, values, places]
    start = [hlo.zeros(index), keys, hlo.zeros(values), hlo.zeros(places)]
    loop = hlo.op("while", start, types, regions=2)

    def step(i: Value, keys: Value, values: Value, places: Value) -> list[Value]:
        def spread(v: Value, size: int) -> Value:
            return hlo.broadcast_in_dim(v, (*rows, size), range(last))

        place = hlo.iota(hlo.like(keys, element=i32), last)
        top = hlo.reduce(keys, hlo.scalar(least, element), [last], hlo.maximum)
        equal = hlo.compare("EQ", keys, spread(top, count))
        beyond = hlo.constant_like(place, count)
        at = hlo.select(equal, place, beyond)
        at = hlo.reduce(at, hlo.scalar(count, i32), [last], hlo.minimum)
        here = hlo.compare("EQ", place, spread(at, count))
        now = hlo.compare(
            "EQ", hlo.iota(places.type, last), hlo.splat(i, (*rows, wanted))
        )
        return [
            hlo.add(i, hlo.constant_like(i, 1)),
            hlo.select(here, hlo.constant_like(keys, least), keys),
            hlo.select(now, spread(top, wanted), values),
            hlo.select(now, spread(at, wanted), places),
        ]

    hlo.body(
        loop, types, lambda i, *_: hlo.compare("LT", i, hlo.constant(wanted, index))
    )
    hlo.body(loop, types, step, region=1)
    return list(loop.results)[2:]
