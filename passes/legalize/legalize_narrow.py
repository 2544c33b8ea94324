"""Floats narrower than f32: sums of them are made in f32 and rounded once.

IREE adds up in the type of the result. On a processor it rounds after each tile of a
contraction and after each term of a sum, which then stops growing: at 256 in bf16. For
a GPU it has no kernel for a bf16 product with a bf16 result at all ("failed to
distribute"). XLA and PyTorch round once. Operands stay narrow, so that matrix units
take them.
"""

from collections.abc import Callable, Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.narrow_floats import MOVES, is_narrow
from pcp.passes.core.rewriting import attributes, defining, integer

Value = ir.Value
Values = Sequence[Value]

LARGEST_F32 = (2 - 2.0**-23) * 2.0**127

_COMBINE = {
    "add": hlo.add,
    "maximum": hlo.maximum,
    "minimum": hlo.minimum,
    "multiply": hlo.multiply,
}


def contraction(op: ir.Operation) -> Values | None:
    """A product with a result in f32, then rounded; its operands stay narrow."""
    element = hlo.element_type(op.result)
    if not is_narrow(element):
        return None
    value = _made(op, list(op.operands), ir.F32Type.get())
    return [hlo.convert(value, element)]


def convolution(op: ir.Operation) -> Values | None:
    """The same. What works channel by channel takes its operands in f32, too.

    IREE merges conversions into a convolution, and trips over this one's kernel
    where its type is not the result's: a barrier keeps them apart.
    """
    if not _is_depthwise(op):
        return contraction(op)
    x, kernel = op.operands
    if not (is_narrow(hlo.element_type(x)) or comes_converted(kernel)):
        return None
    element = hlo.element_type(op.result)
    wide = ir.F32Type.get() if is_narrow(element) else element
    kernel = hlo.optimization_barrier(hlo.convert(kernel, wide))
    value = _made(op, [hlo.convert(x, wide), kernel], wide)
    return [hlo.convert(value, element)]


def comes_converted(
    x: Value,
    through: frozenset[str] = MOVES,
    taken: Callable[[ir.Type], bool] = is_narrow,
) -> bool:
    """Whether it is a narrower value made wider, by way of no other ops than these.

    `taken` says which element types count.
    """
    pending, seen = [x], set[Value]()
    while pending:
        value = pending.pop()
        op = defining(value)
        if op is None or value in seen:
            continue
        seen.add(value)
        if op.name == "stablehlo.convert":
            source = op.operands[0]
            if _bits(source) < _bits(value) and taken(hlo.element_type(source)):
                return True
        if op.name in through:
            pending += op.operands
    return False


def _bits(x: Value) -> int:
    """Of an element; 0 for a complex number, which no conversion widens to one."""
    element = hlo.element_type(x)
    if isinstance(element, ir.FloatType):
        return ir.FloatType(element).width
    return ir.IntegerType(element).width if isinstance(element, ir.IntegerType) else 0


def _is_depthwise(op: ir.Operation) -> bool:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    inputs = hlo.shape_of(op.operands[1])[numbers.kernel_input_feature_dimension]
    return inputs == 1 and integer(op, "feature_group_count") > 1


def _made(op: ir.Operation, operands: Values, element: ir.Type) -> Value:
    """The same op on other operands, its result of this type."""
    result = hlo.like(op.result, element=element)
    return hlo.op(op.name, operands, [result], **attributes(op)).result


def reduction(op: ir.Operation) -> Values | None:
    """A `reduce` or `reduce_window` in f32, then rounded.

    A maximum gains no digits by it, but Metal's compiler takes none in bf16.
    """
    if len(op.operands) != 2 or not is_narrow(hlo.element_type(op.operands[0])):
        return None
    combine = _COMBINE.get(body_kind(op.regions[0].blocks[0]) or "")
    if combine is None:
        return None
    element, f32 = hlo.element_type(op.result), ir.F32Type.get()
    wide = [hlo.convert(operand, f32) for operand in op.operands]
    result = hlo.like(op.result, element=f32)
    made = hlo.op(op.name, wide, [result], regions=1, **attributes(op))
    scalar = hlo.tensor((), f32)
    hlo.body(made, [scalar, scalar], combine)
    return [hlo.convert(made.result, element)]


def convert(op: ir.Operation) -> Values | None:
    """An integer to bf16, by way of f32, as XLA does it.

    Without a step in between IREE makes one conversion of the two, for which it calls
    a function of the C runtime's that no bundle has (`__truncsfbf2`). No integer is
    above the largest f32.
    """
    x, element = op.operands[0], hlo.element_type(op.result)
    integer = isinstance(hlo.element_type(x), ir.IntegerType)
    if not (integer and isinstance(element, ir.BF16Type)):
        return None
    wide = hlo.convert(x, ir.F32Type.get())
    same = hlo.minimum(wide, hlo.constant_like(wide, LARGEST_F32))
    return [hlo.convert(same, element)]
