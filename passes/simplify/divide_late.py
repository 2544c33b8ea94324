"""pcp-divide-late: what a softmax weighs is added up first, and divided then.

`(e / s) · v = (e · v) / s`, where s is of a row of e: the quotient, as large as all
pairs of positions, is not needed, and the derivative of what is left is that of
FlashAttention: its inner products are of the outputs, and not of the weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core.base import Pass
from pcp.passes.core.constants import splat
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.rewriting import (
    STOP,
    attributes,
    before,
    defining,
    functions,
    ints,
    operations,
    replace,
    sweep,
)

#: Ops between a row's maximum and where it is subtracted; a softmax has under five.
_NEAR = 8

#: What hands on a maximum, or makes it finite, element by element or at other places.
_FINITE = frozenset({"stablehlo.maximum", "stablehlo.select", STOP})
_PLACED = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "transpose")
)


@dataclass(frozen=True)
class DivideLate(Pass):
    """Divide a product by the sums of its left or right operand's exponentials.

    For softmax(x) · v in f32 or f64, where nothing else uses the quotient and the
    product is no larger. Only where the row's maximum was subtracted, so that no
    sum is larger than the row is long. What is subtracted is one number for the row and
    cancels: derivatives stop there. Results differ in the last places. Before, after:

        %e = exp(x - max x), %s = reduce_sum(%e), %S = broadcast %s
        %p = stablehlo.divide %e, %S : tensor<8x128x128xf32>
        %y = stablehlo.dot_general %p, %v, batching_dims = [0] x [0],
            contracting_dims = [2] x [1] : ... -> tensor<8x128x32xf32>

        %n = stablehlo.dot_general %e, %v, ... -> tensor<8x128x32xf32>
        %y = stablehlo.divide %n, (broadcast %s) : tensor<8x128x32xf32>

    Where whole rows of the quotient are made zeros, as PyTorch does where a row sees
    nothing, rows of the product are, behind the division.
    """

    name = "pcp-divide-late"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        for op in operations(module):
            if op.name == "stablehlo.dot_general":
                _rewrite(op)
        for function in functions(module):
            sweep(function)


def _rewrite(op: ir.Operation) -> None:
    for side in (0, 1):
        if (found := _softmax(op, side)) is not None:
            with before(op):
                replace(op, [_divided(op, side, found)])
            return


@dataclass(frozen=True)
class Softmax:
    """Exponentials in the shape of a product's operand, and the sums of their rows."""

    exponentials: ir.Value
    sums: ir.Value
    dim: int
    """The operand's dimension along which the sums were taken."""
    empty: ir.Value | None
    """Which rows are zeros instead, as the sums lie."""


def _softmax(op: ir.Operation, side: int) -> Softmax | None:
    operand = op.operands[side]
    element = hlo.element_type(operand)
    if not isinstance(element, (ir.F32Type, ir.F64Type)):
        return None
    if element != hlo.element_type(op.result) or "algorithm" in op.attributes:
        return None
    contracted = _contracted(op, side)
    if len(contracted) != 1 or hlo.size(op.result) > hlo.size(operand):
        return None
    mask, quotient = _behind_zeros(_behind_reshapes(operand))
    if quotient is None or not _used_once(quotient):
        return None
    numerator, denominator = quotient.operands
    found = _sum_of(numerator, denominator)
    if found is None or not _is_shifted(numerator, found[1]):
        return None
    sums, dim = found
    empty = None if mask is None else _of_rows(mask, dim)
    place = _same_place(hlo.shape_of(numerator), dim, hlo.shape_of(operand))
    if place != contracted[0] or (empty is None) != (mask is None):
        return None
    return Softmax(numerator, sums, dim, empty)


def _divided(op: ir.Operation, side: int, found: Softmax) -> ir.Value:
    _stop(found.exponentials)
    shape = hlo.shape_of(op.operands[side])
    (dim,) = _contracted(op, side)
    operands = list(op.operands)
    operands[side] = _as(found.exponentials, shape)
    product = hlo.op("dot_general", operands, [op.result.type], **attributes(op)).result
    kept = [d for d in range(len(shape)) if d != dim]
    places = _places(op, side)

    def whole(rows: ir.Value) -> ir.Value:
        rows = _as(rows, [shape[d] for d in kept])
        shape_ = hlo.shape_of(op.result)
        return hlo.broadcast_in_dim(rows, shape_, [places[d] for d in kept])

    result = hlo.divide(product, whole(found.sums))
    if found.empty is None:
        return result
    return hlo.select(whole(found.empty), hlo.constant_like(result, 0), result)


def _stop(exponentials: ir.Value) -> None:
    """What was subtracted, hidden from derivatives."""
    exponential = defining(exponentials, "exponential")
    assert exponential is not None, "see `_is_shifted`"
    shifted = exponential.operands[0].owner.operation
    shift = shifted.operands[1]
    with before(shifted):
        shifted.operands[1] = ir.Operation.create(
            STOP, results=[shift.type], operands=[shift]
        ).result


def _as(value: ir.Value, shape: list[int] | tuple[int, ...]) -> ir.Value:
    same = tuple(hlo.shape_of(value)) == tuple(shape)
    return value if same else hlo.reshape(value, shape)


def _numbers(op: ir.Operation, side: int) -> tuple[list[int], list[int]]:
    """An operand's batching dims and its contracting ones."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    if side == 0:
        batch, gone = (
            numbers.lhs_batching_dimensions,
            numbers.lhs_contracting_dimensions,
        )
    else:
        batch, gone = (
            numbers.rhs_batching_dimensions,
            numbers.rhs_contracting_dimensions,
        )
    return list(batch), list(gone)


def _contracted(op: ir.Operation, side: int) -> list[int]:
    return _numbers(op, side)[1]


def _places(op: ir.Operation, side: int) -> dict[int, int]:
    """Where an operand's dims are in the result: batch, free of left, free of right."""
    batch, gone = _numbers(op, side)
    rank = len(hlo.shape_of(op.operands[side]))
    free = [d for d in range(rank) if d not in {*batch, *gone}]
    first = len(batch)
    if side == 1:
        first = len(hlo.shape_of(op.result)) - len(free)
    return {d: i for i, d in enumerate(batch)} | {
        d: first + i for i, d in enumerate(free)
    }


def _behind_reshapes(value: ir.Value) -> ir.Value:
    """What is behind reshapes that nothing else reads."""
    while (op := defining(value)) is not None and _used_once(op):
        if op.name != "stablehlo.reshape" and not _is_copy(op):
            break
        value = op.operands[0]
    return value


def _is_copy(op: ir.Operation) -> bool:
    """Whether it repeats nothing, as a broadcast to the shape that there is."""
    if op.name != "stablehlo.broadcast_in_dim":
        return False
    shapes = [tuple(hlo.shape_of(value)) for value in (op.operands[0], op.result)]
    places = list(ints(op, "broadcast_dimensions"))
    return shapes[0] == shapes[1] and places == sorted(places)


def _behind_zeros(value: ir.Value) -> tuple[ir.Value | None, ir.Operation | None]:
    """The division, and where zeros stand in its place, if that is all who read it."""
    choice = defining(value, "select")
    if choice is None or not _used_once(choice) or splat(choice.operands[1]) != 0:
        return None, defining(value, "divide")
    mask, _, other = choice.operands
    quotient = defining(_behind_reshapes(other), "divide")
    if quotient is None or hlo.shape_of(quotient.result) != hlo.shape_of(other):
        return None, None
    return mask, quotient


def _used_once(op: ir.Operation) -> bool:
    return len(op.results) == 1 and len(list(op.result.uses)) == 1


def _same_place(shape: tuple[int, ...], dim: int, other: tuple[int, ...]) -> int | None:
    """The dim of a reshaped tensor that is `dim` of the one before it."""
    before, after = prod(shape[:dim]), prod(shape[dim + 1 :])
    for d, n in enumerate(other):
        outer = prod(other[:d]), prod(other[d + 1 :])
        if n == shape[dim] and outer == (before, after):
            return d
    return None


def _sum_of(numerator: ir.Value, denominator: ir.Value) -> tuple[ir.Value, int] | None:
    """The sums of the numerator along one dim, which the denominator repeats."""
    *spread, value = _spread(denominator)
    sums = defining(value, "reduce")
    if sums is None or len(sums.operands) != 2 or sums.operands[0] != numerator:
        return None
    dims, block = ints(sums, "dimensions"), sums.regions[0].blocks[0]
    if len(dims) != 1 or body_kind(block) != "add":
        return None
    if splat(sums.operands[1]) != 0:  # a sum of more than the row's numbers
        return None
    if any(len(list(v.uses)) != 1 for v in (*spread, value)):
        return None
    rows = _of_rows(denominator, dims[0])
    return None if rows is None else (value, dims[0])


def _of_rows(value: ir.Value, dim: int) -> ir.Value | None:
    """What a value repeats along `dim`, and has the other dimensions of, in order."""
    *steps, first = _spread(value)
    shape = hlo.shape_of(value)
    origin: list[int | None] = [d for d in range(len(shape)) if d != dim]
    if [*hlo.shape_of(first)] != [n for d, n in enumerate(shape) if d != dim]:
        return None
    for step in reversed(steps):
        origin = _moved(step.owner.operation, origin)
    right = all(
        origin[d] == (None if d == dim else d) or shape[d] == 1
        for d in range(len(shape))
    )
    return first if right else None


def _spread(value: ir.Value) -> list[ir.Value]:
    """A value, and those that it is made of by repetitions and reshapes alone."""
    found = [value]
    while (op := defining(found[-1])) is not None and op.name in (
        "stablehlo.broadcast_in_dim",
        "stablehlo.reshape",
    ):
        found.append(op.operands[0])
    return found


def _moved(op: ir.Operation, origin: list[int | None]) -> list[int | None]:
    """Which dim of the first value each dim of the result runs along; None for none."""
    before, after = hlo.shape_of(op.operands[0]), hlo.shape_of(op.result)
    moved: list[int | None] = [None] * len(after)
    if op.name == "stablehlo.broadcast_in_dim":
        for source, target in enumerate(ints(op, "broadcast_dimensions")):
            if before[source] == after[target]:
                moved[target] = origin[source]
        return moved
    old = [d for d, n in enumerate(before) if n != 1]
    new = [d for d, n in enumerate(after) if n != 1]
    if [before[d] for d in old] != [after[d] for d in new]:
        return [-1] * len(after)  # no dim's number
    for source, target in zip(old, new, strict=True):
        moved[target] = origin[source]
    return moved


def _is_shifted(value: ir.Value, dim: int) -> bool:
    """Whether a value is `exp(x - m)`, with an m made of a maximum of x's.

    Only its sums along `dim` and one quotient may use it, and m has to be the same
    along it: else m would not cancel.
    """
    exponential = defining(value, "exponential")
    if exponential is None or len(list(value.uses)) != 2:
        return False
    shifted = defining(exponential.operands[0], "subtract")
    if shifted is None or not _used_once(shifted):
        return False
    x, shift = shifted.operands
    largest = any(
        len(op.operands) == 2
        and _unmoved(op.operands[0]) == _unmoved(x)
        and body_kind(op.regions[0].blocks[0]) == "maximum"
        for op in _reductions_behind(shift)
    )
    return largest and _is_same_along(shift, dim)


def _unmoved(value: ir.Value) -> ir.Value:
    """What it was before its dimensions, or those of one element, were moved."""
    while (op := defining(value)) is not None:
        if op.name == "stablehlo.reshape":
            shapes = (hlo.shape_of(v) for v in (op.operands[0], op.result))
            before, after = ([n for n in shape if n != 1] for shape in shapes)
            if before != after:
                break
        elif op.name != "stablehlo.transpose":
            break
        value = op.operands[0]
    return value


def _reductions_behind(value: ir.Value) -> Iterator[ir.Operation]:
    pending, seen = [value], 0
    while pending and seen < _NEAR:
        seen += 1
        if (op := defining(pending.pop())) is None:
            continue
        if op.name == "stablehlo.reduce":
            yield op
        elif op.name in _FINITE | _PLACED:
            pending += op.operands


def _is_same_along(value: ir.Value, dim: int) -> bool:
    """Whether all elements that differ in their place along `dim` alone are equal."""
    shape, op = hlo.shape_of(value), defining(value)
    if not shape or shape[dim] == 1 or splat(value) is not None:
        return True
    if op is None:
        return False
    if op.name in _FINITE:
        return all(_is_same_along(operand, dim) for operand in op.operands)
    if op.name not in _PLACED:
        return False
    source = op.operands[0]
    if op.name == "stablehlo.transpose":
        return _is_same_along(source, ints(op, "permutation")[dim])
    if op.name == "stablehlo.reshape":
        place = _same_place(shape, dim, hlo.shape_of(source))
        return place is not None and _is_same_along(source, place)
    places = list(ints(op, "broadcast_dimensions"))
    return dim not in places or _is_same_along(source, places.index(dim))
