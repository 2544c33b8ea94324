"""reduce_window and select_and_scatter: pooling and cumulative operations.

Sums are transposed by another windowed sum. Extrema go to the first element in
window order that attains the value. Other bodies are redone step by step from
elementwise pieces, which are then differentiated.
"""

from itertools import product
from math import prod

from pcp.autodiff.core.activity import propagate
from pcp.autodiff.core.bodies import combiner, lift
from pcp.autodiff.core.cotangents import Cotangents
from pcp.autodiff.core.kinds import Site, Vjp
from pcp.autodiff.core.values import sum_all, wide
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, gather, scatter
from pcp.dialect.hlo_windows import Window, dilated, reduce_window

Value = ir.Value

#: Up to this many elements a window is unfolded into one elementwise pass each;
#: 49 is the 7x7 window of image models. Beyond it positions are looked up.
UNFOLD_LIMIT = 64


def _reduce_window(at: Site) -> list[Value | None]:
    count = len(at.op.results)
    nothing: list[Value | None] = [None] * (len(at.inputs) - count)
    name, window = combiner(at.op), Window.of(at.op)
    if any(at.wanted[count:]):
        nothing = [_initial(at, name, window)]
    if not hlo.size(at.y):
        return [None] * len(at.inputs)
    if count == 1 and name == "add":
        return [_sum(at, window), *nothing]
    if count == 1 and name in ("maximum", "minimum"):
        small = prod(window.sizes) <= UNFOLD_LIMIT
        return [(_unfold if small else _look_up)(at, window), *nothing]
    axis = _cumulative_axis(at, window)
    if axis is not None:
        return [*_scan(at, count, axis, window), *nothing]
    if prod(window.sizes) <= UNFOLD_LIMIT:
        return [*_steps(at, count, window), *nothing]
    raise at.refuse(
        f"a body other than add, maximum and minimum over a window of more than "
        f"{UNFOLD_LIMIT} elements has no rule, unless it is a cumulative operation"
    )


def _initial(at: Site, name: str | None, window: Window) -> Value:
    """Every window adds the initial value once, and once more for each gap."""
    gaps = any(any(p) for p in window.padding) or set(window.base_dilations) != {1}
    if len(at.inputs) != 2 or name != "add" or gaps:
        raise at.refuse(
            "its initial value (or a value its body captures) depends on what is "
            "differentiated; use the body's identity as initial value and combine "
            "with the other afterwards"
        )
    return sum_all(at.g)


# --- sums ---


def _sum(at: Site, window: Window) -> Value:
    """The windowed sum of g, spread by the stride, with the window turned round."""
    low, high = [], []
    for n, o, size, stride, base, step, (before, _) in zip(
        hlo.shape_of(at[0]),
        hlo.shape_of(at.y),
        window.sizes,
        window.strides,
        window.base_dilations,
        window.dilations,
        window.padding,
        strict=True,
    ):
        extent = dilated(size, step)
        low.append(extent - 1 - before)
        high.append(dilated(n, base) + extent - 1 - dilated(o, stride) - low[-1])
    g = hlo.convert(at.g, wide(hlo.element_type(at.g)))
    spread = hlo.pad(g, _zero(g), low, high, [s - 1 for s in window.strides])
    rank = len(window.sizes)
    back = window.with_(
        strides=window.base_dilations,
        base_dilations=(1,) * rank,
        padding=((0, 0),) * rank,
    )
    total = reduce_window([spread], [_zero(g)], back, hlo.add)[0]
    return hlo.convert(total, hlo.element_type(at[0]))


# --- the padded operand and its windows, element by element ---


def _padded(x: Value, init: Value, window: Window) -> Value:
    low, high = zip(*window.padding, strict=True)
    interior = [d - 1 for d in window.base_dilations]
    if not any(low) and not any(high) and not any(interior):
        return x
    return hlo.pad(x, init, low, high, interior)


def _unpadded(x: Value, window: Window) -> Value:
    """The transpose of `_padded`."""
    low, high = zip(*window.padding, strict=True)
    if any(low) or any(high):
        zero = hlo.scalar(0, hlo.element_type(x))
        x = hlo.pad(x, zero, [-n for n in low], [-n for n in high])
    if all(d == 1 for d in window.base_dilations):
        return x
    shape = hlo.shape_of(x)
    return hlo.slice_(x, [0] * len(shape), shape, window.base_dilations)


def _offsets(window: Window):
    return product(*(range(n) for n in window.sizes))


def _element(x: Value, offset: tuple[int, ...], window: Window, count) -> Value:
    """The element at `offset` of every window."""
    start = [o * d for o, d in zip(offset, window.dilations, strict=True)]
    limit = [
        s + (n - 1) * step + 1
        for s, n, step in zip(start, count, window.strides, strict=True)
    ]
    return hlo.slice_(x, start, limit, window.strides)


def _element_transposed(
    g: Value, offset: tuple[int, ...], window: Window, shape: tuple[int, ...]
) -> Value:
    start = [o * d for o, d in zip(offset, window.dilations, strict=True)]
    high = [
        n - s - ((m - 1) * step + 1)
        for n, s, m, step in zip(
            shape, start, hlo.shape_of(g), window.strides, strict=True
        )
    ]
    zero = hlo.scalar(0, hlo.element_type(g))
    return hlo.pad(g, zero, start, high, [s - 1 for s in window.strides])


# --- extrema ---


def _where_defined(at: Site) -> Value:
    """g, and NaN where the extremum is one: no element's share of it is known."""
    undefined = hlo.compare("NE", at.y, at.y)
    one, nan = (hlo.constant_like(at.g, v) for v in (1.0, float("nan")))
    return hlo.multiply(at.g, hlo.select(undefined, nan, one))  # linear in g


def _unfold(at: Site, window: Window) -> Value:
    """One pass for each position in the window; the first that attains y wins."""
    padded = _padded(at[0], at[1], window)
    shape, count = hlo.shape_of(padded), hlo.shape_of(at.y)
    beaten = "LT" if combiner(at.op) == "maximum" else "GT"  # by nothing if y is NaN
    g, zero, total, open_ = _where_defined(at), hlo.zeros(at.g.type), None, None
    for offset in _offsets(window):
        miss = hlo.compare(beaten, _element(padded, offset, window, count), at.y)
        hit = hlo.not_(miss)
        first = hit if open_ is None else hlo.and_(hit, open_)
        open_ = miss if open_ is None else hlo.and_(open_, miss)
        share = hlo.select(first, g, zero)
        term = _element_transposed(share, offset, window, shape)
        total = term if total is None else hlo.add(total, term)
    return _unpadded(total, window)


def _look_up(at: Site, window: Window) -> Value:
    """Find the winner's position by a windowed argmax, then scatter-add g there."""
    x, element = at[0], hlo.element_type(at[0])
    direction = "GE" if combiner(at.op) == "maximum" else "LE"
    index = _selected(x, at[1], window, lambda a, b: hlo.compare(direction, a, b))
    flat = hlo.tensor((hlo.size(x),), element)
    where = hlo.reshape(index, [hlo.size(index), 1])
    updates = hlo.reshape(_where_defined(at), [hlo.size(at.g)])
    total = scatter(hlo.zeros(flat), where, updates, _FLAT, hlo.add)
    return hlo.reshape(total, hlo.shape_of(x))


#: Scalars of a vector, at indices of shape [n, 1].
_FLAT = Windows((), (0,), (), (), (0,), 1)


def _selected(x: Value, init: Value | None, window: Window, wins) -> Value:
    """The linear position in x that each window selects; -1 for padding alone.

    `wins(a, b)` keeps the earlier a against b, as `select_and_scatter` reads it;
    padding never wins against an element.
    """
    shape = hlo.shape_of(x)
    i32 = ir.IntegerType.get_signless(32)
    linear = hlo.reshape(hlo.iota(hlo.tensor((hlo.size(x),), i32), 0), shape)
    none = hlo.constant(-1, hlo.tensor((), i32))
    start = hlo.scalar(0, hlo.element_type(x)) if init is None else init

    def combine(a: Value, i: Value, b: Value, j: Value) -> list[Value]:
        b_empty = hlo.compare("LT", j, hlo.zeros(j.type))
        a_full = hlo.compare("GE", i, hlo.zeros(i.type))
        keep = hlo.or_(hlo.and_(a_full, wins(a, b)), b_empty)
        return [hlo.select(keep, a, b), hlo.select(keep, i, j)]

    return reduce_window([x, linear], [start, none], window, combine)[1]


# --- any body ---


def _pull(made, outputs, gs, sources) -> list[Value | None]:
    """Cotangents of `sources` from those of `outputs` through the ops `made`."""
    from pcp.autodiff.core.reverse import pull_back  # rules are below the walk

    active = {x: "" for x in sources if hlo.is_differentiable(x)}
    cotangents = Cotangents()
    for output, g in zip(outputs, gs, strict=True):
        cotangents.add(output, g)
    pull_back(made, cotangents, propagate(made, active))
    return [cotangents.take(x) for x in sources]


def _lifted(at: Site, left: list[Value], right: list[Value]):
    block = at.op.regions[0].blocks[0]
    lifted = lift(block, [*left, *right], hlo.shape_of(left[0]))
    if lifted is None:
        raise at.refuse("its body holds an op that is not elementwise")
    return lifted


def _steps(at: Site, count: int, window: Window) -> list[Value | None]:
    """Fold the elements of a small window one after the other."""
    inputs, inits = at.inputs[:count], at.inputs[count : 2 * count]
    padded = [_padded(x, i, window) for x, i in zip(inputs, inits, strict=True)]
    shape, windows = hlo.shape_of(padded[0]), hlo.shape_of(at.y)
    offsets = list(_offsets(window))
    state = [_element(x, offsets[0], window, windows) for x in padded]
    trail = []
    for offset in offsets[1:]:
        more = [_element(x, offset, window, windows) for x in padded]
        results, made = _lifted(at, state, more)
        trail.append((state, more, results, made))
        state = results
    gs: list[Value | None] = list(at.cotangents)
    totals: list[Value | None] = [None] * count
    for offset, (left, right, results, made) in zip(
        offsets[:0:-1], reversed(trail), strict=True
    ):
        answer = _pull(made, results, gs, [*left, *right])
        gs = answer[:count]
        totals = _accumulated(totals, answer[count:], offset, window, shape)
    totals = _accumulated(totals, gs, offsets[0], window, shape)
    return [None if t is None else _unpadded(t, window) for t in totals]


def _accumulated(totals, gs, offset, window: Window, shape):
    terms = [
        None if g is None else _element_transposed(g, offset, window, shape) for g in gs
    ]
    return [
        b if a is None else a if b is None else hlo.add(a, b)
        for a, b in zip(totals, terms, strict=True)
    ]


def _cumulative_axis(at: Site, window: Window) -> tuple[int, bool] | None:
    """(dimension, from the end) if the op is a running fold along one dimension."""
    shape = hlo.shape_of(at[0])
    if {*window.strides, *window.base_dilations, *window.dilations} != {1}:
        return None
    wide = [d for d, n in enumerate(window.sizes) if n != 1]
    if len(wide) != 1 or window.sizes[wide[0]] != shape[wide[0]]:
        return None
    (d,) = wide
    if any(p != (0, 0) for i, p in enumerate(window.padding) if i != d):
        return None
    reach = shape[d] - 1
    return {(reach, 0): (d, False), (0, reach): (d, True)}.get(window.padding[d])


def _scan(
    at: Site, count: int, axis: tuple[int, bool], window: Window
) -> list[Value | None]:
    """log₂(n) doubling steps, each x_i ← f(x_{i-s}, x_i), transposed in turn."""
    dimension, from_end = axis
    inits = at.inputs[count : 2 * count]
    xs, trail, shift = list(at.inputs[:count]), [], 1
    rank = len(window.sizes)
    while shift < window.sizes[dimension]:
        move = [0] * rank
        move[dimension] = shift
        back = [-n for n in move]
        low, high = (back, move) if from_end else (move, back)
        shifted = [hlo.pad(x, i, low, high) for x, i in zip(xs, inits, strict=True)]
        sides = (xs, shifted) if from_end else (shifted, xs)
        results, made = _lifted(at, *sides)
        trail.append((xs, shifted, low, high, results, made))
        xs, shift = results, shift * 2
    gs: list[Value | None] = list(at.cotangents)
    for before, shifted, low, high, results, made in reversed(trail):
        answer = _pull(made, results, gs, [*before, *shifted])
        moved = [
            None if g is None else hlo.pad(g, _zero(g), high, low)
            for g in answer[count:]
        ]
        gs = [
            b if a is None else a if b is None else hlo.add(a, b)
            for a, b in zip(answer[:count], moved, strict=True)
        ]
    return gs


def _zero(x: Value) -> Value:
    return hlo.scalar(0, hlo.element_type(x))


# --- select_and_scatter ---


def _select_and_scatter(at: Site) -> list[Value | None]:
    """The source's cotangent is read where its element was sent.

    The operand only decides where: no derivative. The initial value is counted
    once in every element.
    """
    name = combiner(at.op, region=1)
    if name != "add":
        raise at.refuse("only a scatter that adds has a derivative rule")
    operand, source = at[0], at[1]
    given = Window.of(at.op)
    window = given.with_(
        base_dilations=(1,) * len(given.sizes), dilations=(1,) * len(given.sizes)
    )
    cotangent = None
    if at.wanted[1]:
        wins = _comparison(at)
        index = _selected(operand, None, window, wins)
        flat = hlo.reshape(at.g, [hlo.size(at.g)])
        where = hlo.reshape(index, [hlo.size(index), 1])
        read = gather(flat, where, _FLAT, [1])
        cotangent = hlo.reshape(read, hlo.shape_of(source))
    init = sum_all(at.g) if at.wanted[2] else None
    return [None, cotangent, init, *[None] * (len(at.inputs) - 3)]


def _comparison(at: Site):
    block = at.op.regions[0].blocks[0]

    def wins(a: Value, b: Value) -> Value:
        lifted = lift(block, [a, b], ())
        if lifted is None:
            raise at.refuse("its selection holds an op that is not elementwise")
        return lifted[0][0]

    return wins


RULES = {
    "reduce_window": Vjp(_reduce_window),
    "select_and_scatter": Vjp(_select_and_scatter),
}
