"""Reversals and windows of unsigned integers, and reversals of every so many elements.

IREE forgets that an integer is unsigned when it makes loops of a `reverse` or of a
`reduce_window`, and then finds two types for one value. They work on the same bits as
signed integers; for an extremum the highest bit is flipped, which keeps the order.
"""

from collections.abc import Callable, Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.rewriting import attributes, defining, ints
from pcp.passes.legalize.legalize_indexing import is_strided

Value = ir.Value
Values = Sequence[Value]

_COMBINE: dict[str, Callable[[Value, Value], Value]] = {
    "add": hlo.add,
    "and": hlo.and_,
    "maximum": hlo.maximum,
    "minimum": hlo.minimum,
    "multiply": hlo.multiply,
    "or": hlo.or_,
    "xor": hlo.xor,
}


def reverse(op: ir.Operation) -> Values | None:
    """The reversal of signed integers, and of a whole tensor before it is sliced."""
    (x,), dims = op.operands, ints(op, "dimensions")
    if _is_unsigned(x) or _strided(x, dims) is not None or is_strided(x):
        return [_reversed(x, dims)]
    return None


def _reversed(x: Value, dims: Sequence[int]) -> Value:
    """IREE's code generator gets a load with a negative step wrong, so none is left."""
    if (cut := _strided(x, dims)) is not None:
        source, spans = _reversed(cut.operands[0], dims), _spans(cut)
        for d in dims:
            start, limit, step = spans[d]
            size, last = hlo.shape_of(source)[d], (limit - 1 - start) // step * step
            spans[d] = (size - 1 - start - last, size - start, step)
        return hlo.slice_(source, *zip(*spans, strict=True))
    if is_strided(x):
        x = hlo.optimization_barrier(x)
    if _is_unsigned(x):
        return hlo.bitcast_convert(hlo.reverse(_signed(x), dims), x.type)
    return hlo.reverse(x, dims)


def _strided(x: Value, dims: Sequence[int]) -> ir.Operation | None:
    """The slice that makes x, if it skips elements along one of the dims."""
    cut = defining(x, "slice")
    if cut is None or not hlo.size(x):
        return None
    strides = ints(cut, "strides")
    return cut if any(strides[d] > 1 for d in dims) else None


def _spans(cut: ir.Operation) -> list[tuple[int, int, int]]:
    names = ("start_indices", "limit_indices", "strides")
    return list(zip(*(ints(cut, name) for name in names), strict=True))


def reduce_window(op: ir.Operation) -> Values | None:
    """The same windows over signed integers; None for other numbers and bodies."""
    if len(op.operands) != 2 or not _is_unsigned(op.operands[0]):
        return None
    kind = body_kind(op.regions[0].blocks[0]) or ""
    if kind not in _COMBINE:
        return None
    turned = kind in ("maximum", "minimum")
    given = [_flipped(_signed(x), turned) for x in op.operands]
    result = hlo.like(op.result, element=hlo.element_type(given[0]))
    made = hlo.op(op.name, given, [result], regions=1, **attributes(op))
    hlo.body(made, [given[1].type] * 2, _COMBINE[kind])
    return [hlo.bitcast_convert(_flipped(made.result, turned), op.result.type)]


def _flipped(x: Value, turned: bool) -> Value:
    """x with its highest bit flipped, if so."""
    if not turned:
        return x
    width = ir.IntegerType(hlo.element_type(x)).width
    return hlo.xor(x, hlo.constant_like(x, -(1 << width - 1)))


def _is_unsigned(x: Value) -> bool:
    element = hlo.element_type(x)
    return isinstance(element, ir.IntegerType) and ir.IntegerType(element).is_unsigned


def _signed(x: Value) -> Value:
    width = ir.IntegerType(hlo.element_type(x)).width
    word = ir.IntegerType.get_signless(width)
    return hlo.bitcast_convert(x, hlo.like(x, element=word))
