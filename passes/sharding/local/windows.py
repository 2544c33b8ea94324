"""Ops that look over the border of a part: movement along, and windows over, a cut.

Each operand is fetched first (`halo`): from the member's own part to the interval that
its part of the result needs. Then the op runs on it, with padding where the member's
part lies at the border of the whole and none elsewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Convolution, Window
from pcp.passes.core.rewriting import integer, ints
from pcp.passes.sharding.factors import FactorRule, Reach, Span
from pcp.passes.sharding.halo import Border, Exchange
from pcp.passes.sharding.local.op import Adjust, Local, Value


def _cut_reaches(at: Local, operand: int) -> Iterator[tuple[Reach, Border]]:
    """The reaches into an operand along dimensions that are cut."""
    for reach in at.rule.reaches:
        axes = at.assignment.get(reach.factor, ())
        if reach.operand == operand and axes:
            size = at.rule.sizes[reach.factor]
            held = at.layouts[operand].dims[reach.dim]
            exchange = Exchange.of(reach, size, axes, at.mesh, held)
            yield reach, Border(exchange, reach.dim, axes, at.mesh, at.place)


def _part(at: Local, reach: Reach) -> Span:
    """The member's part of the factor that reaches."""
    offset, size = at.part(reach.factor)
    return offset, offset + size


def _fetched(at: Local, operand: int, value: Value) -> Value | None:
    """All that the member needs of an operand; None where that is nothing.

    Even then it goes through every exchange: all members meet the same collectives.
    """
    empty = False
    for _, border in _cut_reaches(at, operand):
        block = ir.InsertionPoint.current.block
        key = (value, border.exchange, border.dim, border.axes, block)
        if key not in at.fetched:
            at.fetched[key] = border.fetch(value)
        value = at.fetched[key]
        empty = empty or border.needed[0] == border.needed[1]
    return None if empty else value


def _blank(at: Local, operand: int, fill: Value) -> Value:
    """In the place of an operand of which nothing is needed: one element of padding."""
    shape = list(at.shape(operand))
    for reach, border in _cut_reaches(at, operand):
        start, stop = border.needed
        shape[reach.dim] = max(1, stop - start)
    return hlo.splat(fill, shape)


def _margins(at: Local, operand: int) -> dict[int, Span]:
    """The padding along each cut dimension that is reached into.

    Of an operand of which nothing is needed a blank is the last place covered.
    """
    found = {}
    for reach, border in _cut_reaches(at, operand):
        low, high = reach.margins(_part(at, reach))
        empty = border.needed[0] == border.needed[1]
        found[reach.dim] = (low - 1, high) if empty else (low, high)
    return found


def _with_result(adjust: Adjust) -> Adjust:
    """Where the member's part of the result, or of what it sums over, is empty.

    It has sent what others need by then: nothing is left but zeros of that shape.
    """

    def adjusted(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
        if all(_part(at, reach)[1] > _part(at, reach)[0] for reach in at.rule.reaches):
            return adjust(at, operands)
        for i, operand in enumerate(operands):
            _fetched(at, i, operand)
        shapes = [at.shape(len(operands) + i) for i in range(len(at.op.results))]
        return [
            hlo.zeros(hlo.tensor(shape, hlo.element_type(result)))
            for shape, result in zip(shapes, at.op.results, strict=True)
        ]

    return adjusted


# --- movement ---


@_with_result
def slice_(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Dimensions that are cut are taken whole, with their stride."""
    found = _fetched(at, 0, operands[0])
    assert found is not None, "an element of a slice is one of its operand"
    copy = at.clone([found])
    starts, limits = (list(ints(at.op, f"{n}_indices")) for n in ("start", "limit"))
    for d, n in enumerate(hlo.shape_of(found)):
        if at.layouts[1].dims[d]:
            starts[d], limits[d] = 0, n
    copy.attributes["start_indices"] = hlo.i64s(starts)
    copy.attributes["limit_indices"] = hlo.i64s(limits)
    return list(copy.results)


@_with_result
def pad(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Padding at the borders of the whole; between parts what interior asks for."""
    value, fill = operands
    found = _fetched(at, 0, value)
    if found is None:
        return [hlo.splat(fill, at.shape(2))]
    low, high = (list(ints(at.op, f"edge_padding_{n}")) for n in ("low", "high"))
    for d, margins in _margins(at, 0).items():
        low[d], high[d] = margins
    copy = at.clone([found, fill])
    copy.attributes["edge_padding_low"] = hlo.i64s(low)
    copy.attributes["edge_padding_high"] = hlo.i64s(high)
    return list(copy.results)


@_with_result
def concatenate(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """The pieces of the operands that the member's part of the result meets."""
    fetched = [_fetched(at, i, operand) for i, operand in enumerate(operands)]
    found = [value for value in fetched if value is not None]
    if len(found) == 1:
        return found
    return [hlo.concatenate(found, integer(at.op, "dimension"))]


@_with_result
def reverse(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """What the member needs, reversed."""
    found = _fetched(at, 0, operands[0])
    assert found is not None, "an element of a reversal is one of its operand"
    return list(at.clone([found]).results)


# --- windows ---


@_with_result
def reduce_window(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Padding is the initial value: so is an operand that no window touches."""
    count = len(operands) // 2
    inits = operands[count:]
    found = [_fetched(at, i, operands[i]) for i in range(count)]
    given = [
        _blank(at, i, inits[i]) if value is None else value
        for i, value in enumerate(found)
    ]
    padding = list(Window.of(at.op).padding)
    for d, margins in _margins(at, 0).items():
        padding[d] = margins
    copy = at.clone([*given, *inits])
    copy.attributes["padding"] = hlo.i64_matrix(padding)
    return list(copy.results)


@_with_result
def convolution(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """As many groups as the member has, and its borders."""
    conv = Convolution.of(at.op)
    found = _fetched(at, 0, operands[0])
    if found is None:
        zero = hlo.zeros(hlo.tensor((), hlo.element_type(operands[0])))
        found = _blank(at, 0, zero)
    copy = at.clone([found, operands[1]])
    if margins := _margins(at, 0):
        spatial = enumerate(conv.dims.input[2])
        padding = [margins.get(d, conv.padding[s]) for s, d in spatial]
        copy.attributes["padding"] = hlo.i64_matrix(padding)
    for name in ("feature_group_count", "batch_group_count"):
        count = integer(at.op, name)
        if count > 1:
            groups = next(
                f
                for f, n in enumerate(at.rule.sizes)
                if n == count and _leads(at.rule, f)
            )
            copy.attributes[name] = hlo.i64(at.part(groups)[1])
    return list(copy.results)


def _leads(rule: FactorRule, factor: int) -> bool:
    """Whether the factor is the major one of a dimension of several."""
    dims = [dim for tensor in rule.tensors for dim in tensor]
    return any(len(dim) > 1 and dim[0] == factor for dim in dims)


@dataclass(frozen=True)
class _View:
    """Along one cut dimension: what the windows that touch a part see."""

    #: In what was fetched of the operand.
    seen: Span
    padding: Span
    #: From what was seen to the member's part: what to add, or to cut off.
    edges: Span


def _view(at: Local, window: Window, x: Reach, source: Border) -> _View:
    d = x.dim
    part, (fetched, _) = _part(at, x), x.needed(_part(at, x))
    first, last = (
        j * window.strides[d] - window.padding[d][0]
        for j in (source.needed[0], source.needed[1] - 1)
    )
    stop = last + window.sizes[d]
    seen = max(0, first), min(x.size, stop)
    return _View(
        (seen[0] - fetched, seen[1] - fetched),
        (seen[0] - first, stop - seen[1]),
        (seen[0] - part[0], part[1] - seen[1]),
    )


@_with_result
def select_and_scatter(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """The windows that touch the member's part, over all that they see.

    What they add beyond its part is cut off: its owner adds the same.
    """
    x, source = (_fetched(at, i, operands[i]) for i in range(2))
    init = operands[2]
    if x is None or source is None:
        return [hlo.splat(init, at.shape(3))]
    window = Window.of(at.op)
    padding, rank = list(window.padding), len(window.sizes)
    start, limit = [0] * rank, list(hlo.shape_of(x))
    low, high = [0] * rank, [0] * rank
    reaches = zip(_cut_reaches(at, 0), _cut_reaches(at, 1), strict=True)
    for (reach, _), (_, border) in reaches:
        view = _view(at, window, reach, border)
        start[reach.dim], limit[reach.dim] = view.seen
        padding[reach.dim] = view.padding
        low[reach.dim], high[reach.dim] = view.edges
    copy = at.clone([hlo.slice_(x, start, limit), source, init])
    copy.results[0].set_type(copy.operands[0].type)
    copy.attributes["padding"] = hlo.i64_matrix(padding)
    return [hlo.pad(copy.results[0], init, low, high)]
