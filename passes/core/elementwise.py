"""The body of a reduce, scatter or map, written out on whole tensors."""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import attributes, refuse

#: Ops that do to each element of a tensor what they do to a scalar.
ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        "abs add and atan2 bitcast_convert cbrt ceil clamp compare complex convert "
        "cosine count_leading_zeros divide exponential exponential_minus_one floor "
        "imag is_finite log log_plus_one logistic maximum minimum multiply negate not "
        "or popcnt power real reduce_precision remainder round_nearest_afz "
        "round_nearest_even rsqrt select shift_left shift_right_arithmetic "
        "shift_right_logical sign sine sqrt subtract tan tanh xor"
    ).split()
)


def inline(block: ir.Block, arguments: Sequence[ir.Value]) -> list[ir.Value]:
    """What a body of scalars returns, on tensors of one shape instead.

    Raises `PassError` at an op that is not elementwise.
    """
    shape = hlo.shape_of(arguments[0])
    values = dict(zip(block.arguments, arguments, strict=True))
    results: list[ir.Value] = []
    for view in block.operations:
        op = view.operation
        inputs = [values.get(v) or _outer(v, shape) for v in op.operands]
        if op.name == "stablehlo.return":
            results = inputs
        elif op.name == "stablehlo.constant":
            values[op.result] = hlo.splat(op.clone().result, shape)
        elif op.name in ELEMENTWISE:
            values[op.result] = _widen(op, inputs, shape)
        else:
            refuse(op, "a body with this op has no form that IREE can compile")
    return results


def _outer(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """A scalar from outside of the body, at every position."""
    return hlo.splat(value, shape)


def _widen(
    op: ir.Operation, inputs: Sequence[ir.Value], shape: Sequence[int]
) -> ir.Value:
    kept = attributes(op)
    result = hlo.tensor(shape, hlo.element_type(op.result))
    return hlo.op(op.name, inputs, [result], **kept).result


def copy_block(source: ir.Block, target: ir.Region, kept: Sequence[int]) -> None:
    """Append a copy of a body, same arguments, that returns only `kept`."""
    types = [argument.type for argument in source.arguments]
    location = ir.Location.current
    block = target.blocks.append(*types, arg_locs=[location] * len(types))
    values = dict(zip(source.arguments, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for view in source.operations:
            op = view.operation
            inputs = [values.get(v, v) for v in op.operands]
            if op.name == "stablehlo.return":
                hlo.op("return", [inputs[i] for i in kept], [])
                return
            copy = op.clone()
            for i, value in enumerate(inputs):
                copy.operands[i] = value
            values.update(zip(op.results, copy.results, strict=True))


def body_kind(block: ir.Block) -> str | None:
    """`add`, `maximum`, ... for a body of that one op on both arguments in turn.

    `set` for a body that returns its second argument, None for any other.
    """
    ops = [view.operation for view in block.operations]
    arguments = list(block.arguments)
    if len(arguments) != 2 or len(ops) > 2 or len(ops[-1].operands) != 1:
        return None
    returned = ops[-1].operands[0]
    if len(ops) == 1:
        return "set" if returned == arguments[1] else None
    operands = list(ops[0].operands)
    if returned != ops[0].results[0] or len(operands) != 2:
        return None
    swapped = operands == arguments[::-1]
    name = ops[0].name.removeprefix("stablehlo.")
    if operands == arguments or (swapped and name in COMMUTATIVE):
        return name
    return None


COMMUTATIVE = frozenset(["add", "and", "maximum", "minimum", "multiply", "or", "xor"])


def identity(kind: str, element: ir.Type) -> float | int | bool | None:
    """What changes nothing when a body of this kind combines it, bit for bit.

    -0.0 for a float sum: adding +0.0 would turn -0.0 into +0.0.
    """
    if hlo.is_complex(element):
        return {"add": complex(-0.0, -0.0), "subtract": 0, "multiply": 1}.get(kind)
    if hlo.is_float(element):
        infinite = float("inf")
        return {
            "add": -0.0,
            "subtract": 0.0,
            "multiply": 1.0,
            "maximum": -infinite,
            "minimum": infinite,
        }.get(kind)
    return _integer_identity(kind, ir.IntegerType(element))


def _integer_identity(kind: str, element: ir.IntegerType) -> int | None:
    low, high = integer_limits(element)
    ones = high if low == 0 else -1
    return {
        "add": 0,
        "subtract": 0,
        "multiply": 1,
        "maximum": low,
        "minimum": high,
        "and": ones,
        "or": 0,
        "xor": 0,
    }.get(kind)


def integer_limits(element: ir.Type) -> tuple[int, int]:
    """The least and greatest value of an integer type; `i1` counts 0 and 1."""
    integer = ir.IntegerType(element)
    if integer.is_unsigned or integer.width == 1:
        return 0, 2**integer.width - 1
    return -(2 ** (integer.width - 1)), 2 ** (integer.width - 1) - 1
