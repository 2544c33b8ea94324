"""Sorts: IREE's exchanges elements that compare equal, and a cut one it mistakes.

Where the order must be stable the position becomes one more operand, and decides
between equals. IREE's takes time by the square of the length, so a few of many are
found one by one.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis.ranges import limits
from pcp.passes.core.rewriting import defining, integer, ints

Value = ir.Value

#: Of a `top_k`: elements from which on, and how many of them to one that is wanted.
MANY, TIMES = 1024, 16


def few_of_many(op: ir.Operation) -> Sequence[Value] | None:
    """`chlo.top_k` of few floats: the largest, k times, in the place of a sort.

    Floats are compared as integers, in IEEE 754's total order; what was found becomes
    the least integer. Of 32,000 elements a sort takes seconds.
    """
    (x,) = op.operands
    count, wanted = hlo.shape_of(x)[-1], integer(op, "k")
    element = hlo.element_type(x)
    real = hlo.is_float(element) and ir.FloatType(element).width >= 16
    if not real or count < MANY or wanted * TIMES > count or not hlo.size(x):
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


def stable(op: ir.Operation) -> Sequence[Value] | None:
    """The sort with its order made total where it must be stable; None: as it is."""
    if not _must_be_stable(op):
        return _hidden(op.clone().operation) if _is_cut(op) else None
    operands = list(op.operands)
    dimension = integer(op, "dimension")
    place = _position_in(operands, dimension)
    every = operands
    if place is None:
        position = hlo.like(operands[0], element=_index_type(operands[0], dimension))
        every = [*operands, hlo.iota(position, dimension)]
        place = len(operands)
    new = hlo.op(
        "sort",
        every,
        [x.type for x in every],
        regions=1,
        dimension=hlo.i64(dimension),
        is_stable=ir.BoolAttr.get(False),
    )
    less = op.regions[0].blocks[0]

    def total(*pairs: Value) -> Value:
        given = pairs[: 2 * len(operands)]
        swapped = [given[i ^ 1] for i in range(len(given))]
        neither = hlo.not_(_copied(less, swapped))
        left, right = pairs[2 * place], pairs[2 * place + 1]
        earlier = hlo.and_(neither, hlo.compare("LT", left, right))
        return hlo.or_(_copied(less, given), earlier)

    scalars = [hlo.tensor((), hlo.element_type(x)) for x in every]
    hlo.body(new, [t for t in scalars for _ in range(2)], total)
    if _is_cut(op):
        return _hidden(new)[: len(operands)]
    return list(new.results)[: len(operands)]


def _hidden(op: ir.Operation) -> Sequence[Value]:
    return [hlo.optimization_barrier(x) for x in op.results]


def _is_cut(op: ir.Operation) -> bool:
    """Whether a result is sliced. IREE takes that for a top_k, also where values and
    positions are cut differently, and then fails; a barrier hides the pattern."""
    users = (use.owner.operation for result in op.results for use in result.uses)
    return any(user.name == "stablehlo.slice" for user in users)


def _position_in(operands: Sequence[Value], dimension: int) -> int | None:
    """The operand that counts the positions already, as in an argsort.

    IREE does not compile a sort that has two of them.
    """
    for i, operand in enumerate(operands):
        if _counts(operand, dimension) and _counts_all(operand, dimension):
            return i
    return None


def _counts(value: Value, dimension: int) -> bool:
    """Whether it is an iota along the dimension; of a batch, one that is broadcast."""
    while (op := defining(value, "broadcast_in_dim")) is not None:
        dims = ints(op, "broadcast_dimensions")
        if dimension not in dims:
            return False
        value, dimension = op.operands[0], dims.index(dimension)
    op = defining(value, "iota")
    return op is not None and integer(op, "iota_dimension") == dimension


def _counts_all(positions: Value, dimension: int) -> bool:
    """Whether the element type holds every position apart."""
    if not isinstance(hlo.element_type(positions), ir.IntegerType):
        return False
    return hlo.shape_of(positions)[dimension] - 1 <= limits(positions.type)[1]


def _must_be_stable(op: ir.Operation) -> bool:
    """Asked for, and to be seen: of integers alone, equal ones are the same."""
    asked = hlo.attribute(op, "is_stable")
    if asked is None or not ir.BoolAttr(asked).value or not hlo.size(op.operands[0]):
        return False
    alone = len(op.operands) == 1
    whole = isinstance(hlo.element_type(op.operands[0]), ir.IntegerType)
    block = op.regions[0].blocks[0]
    plain = len(list(block.operations)) == 2  # a comparison and the return
    return not (alone and whole and plain)


def _index_type(x: Value, dimension: int) -> ir.Type:
    wide = hlo.shape_of(x)[dimension] >= 2**31
    return ir.IntegerType.get_signless(64 if wide else 32)


def _copied(block: ir.Block, arguments: Sequence[Value]) -> Value:
    """What the comparator says of `arguments`; its ops are copied here."""
    values = dict(zip(block.arguments, arguments, strict=True))
    *ops, end = [view.operation for view in block.operations]
    for op in ops:
        copy = op.clone()
        for i, operand in enumerate(op.operands):
            copy.operands[i] = values.get(operand, operand)
        values.update(zip(op.results, copy.results, strict=True))
    answer = end.operands[0]
    return values.get(answer, answer)
