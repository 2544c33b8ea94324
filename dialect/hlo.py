"""StableHLO ops as Python functions on `ir.Value`, with result types inferred.

They insert at the current insertion point, with the current location:

    with ir.InsertionPoint(block), loc:
        y = hlo.multiply(x, hlo.constant_like(x, 2.0))

Names are those of the specification. Shapes are static; a dynamic one raises.
The wheel has no generated StableHLO classes, so this is the place where ops
are built by name.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.hlo_base import (  # noqa: F401 - callers find all in hlo
    NO_COTANGENT,
    attribute,
    bools,
    element_type,
    i64,
    i64_matrix,
    i64s,
    is_complex,
    is_differentiable,
    is_float,
    like,
    op,
    shape_of,
    size,
    tensor,
    tensor_type,
    why_no_cotangent,
)

Value = ir.Value


def _unary(name: str) -> Callable[[Value], Value]:
    def build(x: Value) -> Value:
        return op(name, [x], [x.type]).result

    build.__name__, build.__doc__ = name, f"`stablehlo.{name}`."
    return build


def _binary(name: str) -> Callable[[Value, Value], Value]:
    def build(lhs: Value, rhs: Value) -> Value:
        return op(name, [lhs, rhs], [lhs.type]).result

    build.__name__, build.__doc__ = name, f"`stablehlo.{name}`; equal types."
    return build


# --- constants ---


def constant(value: Any, type_: ir.Type) -> Value:
    """A splat of `type_`; `value` is a number that the element type holds."""
    ranked = tensor_type(type_)
    element = ranked.element_type
    if isinstance(element, ir.ComplexType):
        part = element.element_type
        width = np.complex64 if isinstance(part, ir.F32Type) else np.complex128
        dense = ir.DenseElementsAttr.get(
            np.full(ranked.shape, value, width), type=element, shape=ranked.shape
        )
    elif is_float(element):
        dense = ir.DenseElementsAttr.get_splat(
            ranked, ir.FloatAttr.get(element, float(value))
        )
    elif isinstance(element, ir.IntegerType) and ir.IntegerType(element).width == 1:
        dense = ir.DenseElementsAttr.get_splat(ranked, ir.BoolAttr.get(bool(value)))
    else:
        # The bindings read numbers as i64: the upper half of ui64 by its bits.
        number = int(value) - (int(value) >> 63 << 64 if value > 0 else 0)
        dense = ir.DenseElementsAttr.get_splat(
            ranked, ir.IntegerAttr.get(element, number)
        )
    return op("constant", [], [ranked], value=dense).result


def constant_like(x: Value | ir.Type, value: float | int | bool | complex) -> Value:
    """A splat of x's type."""
    return constant(value, x if isinstance(x, ir.Type) else x.type)


def zeros(type_: ir.Type) -> Value:
    """All zeros of a tensor type."""
    return constant(0, type_)


def scalar(value: float | int | bool, element: ir.Type) -> Value:
    """A rank-0 constant."""
    return constant(value, tensor((), element))


def constant_ints(values: Sequence[int], width: int = 64) -> Value:
    """A rank-1 integer constant."""
    element = ir.IntegerType.get_signless(width)
    array = np.array(values, np.dtype(f"int{width}"))
    dense = ir.DenseIntElementsAttr.get(array, type=element, shape=array.shape)
    return op("constant", [], [tensor(array.shape, element)], value=dense).result


def iota(type_: ir.Type, dimension: int) -> Value:
    """Counts 0, 1, ... along `dimension`."""
    return op("iota", [], [type_], iota_dimension=i64(dimension)).result


# --- elementwise ---

abs = _unary("abs")
cbrt = _unary("cbrt")
ceil = _unary("ceil")
cosine = _unary("cosine")
exponential = _unary("exponential")
exponential_minus_one = _unary("exponential_minus_one")
floor = _unary("floor")
log = _unary("log")
log_plus_one = _unary("log_plus_one")
logistic = _unary("logistic")
negate = _unary("negate")
not_ = _unary("not")
optimization_barrier = _unary("optimization_barrier")
round_nearest_even = _unary("round_nearest_even")
rsqrt = _unary("rsqrt")
sign = _unary("sign")
sine = _unary("sine")
sqrt = _unary("sqrt")
tan = _unary("tan")
tanh = _unary("tanh")

add = _binary("add")
and_ = _binary("and")
atan2 = _binary("atan2")
divide = _binary("divide")
maximum = _binary("maximum")
minimum = _binary("minimum")
multiply = _binary("multiply")
or_ = _binary("or")
power = _binary("power")
remainder = _binary("remainder")
shift_left = _binary("shift_left")
shift_right_arithmetic = _binary("shift_right_arithmetic")
shift_right_logical = _binary("shift_right_logical")
subtract = _binary("subtract")
xor = _binary("xor")


def compare(direction: str, lhs: Value, rhs: Value, kind: str | None = None) -> Value:
    """`direction` is EQ NE GE GT LE LT; `kind` FLOAT TOTALORDER SIGNED UNSIGNED."""
    i1 = ir.IntegerType.get_signless(1)
    return op(
        "compare",
        [lhs, rhs],
        [like(lhs, element=i1)],
        comparison_direction=stablehlo.ComparisonDirectionAttr.get(direction),
        compare_type=stablehlo.ComparisonTypeAttr.get(kind) if kind else None,
    ).result


def select(pred: Value, on_true: Value, on_false: Value) -> Value:
    """Elementwise; `pred` may be a scalar."""
    return op("select", [pred, on_true, on_false], [on_true.type]).result


def clamp(low: Value, x: Value, high: Value) -> Value:
    """`min(max(x, low), high)`; bounds may be scalars."""
    return op("clamp", [low, x, high], [x.type]).result


def convert(x: Value, element: ir.Type) -> Value:
    """To another element type; nothing is emitted when it is the same."""
    if element_type(x) == element:
        return x
    return op("convert", [x], [like(x, element=element)]).result


def bitcast_convert(x: Value, type_: ir.Type) -> Value:
    """The same bits as another type."""
    return op("bitcast_convert", [x], [type_]).result


def _part(element: ir.Type) -> ir.Type:
    return ir.ComplexType(element).element_type if is_complex(element) else element


def real(x: Value) -> Value:
    """The real part."""
    return op("real", [x], [like(x, element=_part(element_type(x)))]).result


def imag(x: Value) -> Value:
    """The imaginary part."""
    return op("imag", [x], [like(x, element=_part(element_type(x)))]).result


def complex_(re: Value, im: Value) -> Value:
    """`re + i im`."""
    element = ir.ComplexType.get(element_type(re))
    return op("complex", [re, im], [like(re, element=element)]).result


def conj(x: Value) -> Value:
    """The complex conjugate; x itself when it is real."""
    if not is_complex(element_type(x)):
        return x
    return complex_(real(x), negate(imag(x)))


# --- shape and movement ---


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """Same elements in row-major order; nothing is emitted when nothing changes."""
    if shape_of(x) == tuple(shape):
        return x
    return op("reshape", [x], [tensor(shape, element_type(x))]).result


def transpose(x: Value, permutation: Sequence[int]) -> Value:
    """Result dimension i is operand dimension permutation[i]."""
    if list(permutation) == list(range(len(permutation))):
        return x
    shape = [shape_of(x)[p] for p in permutation]
    result = tensor(shape, element_type(x))
    return op("transpose", [x], [result], permutation=i64s(permutation)).result


def broadcast_in_dim(
    x: Value, shape: Sequence[int], dimensions: Sequence[int]
) -> Value:
    """Operand dimension i becomes result dimension dimensions[i]."""
    if shape_of(x) == tuple(shape) and list(dimensions) == list(range(len(shape))):
        return x
    result = tensor(shape, element_type(x))
    dims = i64s(dimensions)
    return op("broadcast_in_dim", [x], [result], broadcast_dimensions=dims).result


def splat(x: Value, shape: Sequence[int]) -> Value:
    """A rank-0 value at every position."""
    return broadcast_in_dim(x, shape, [])


def concatenate(xs: Sequence[Value], dimension: int) -> Value:
    """Joined along `dimension`."""
    shape = list(shape_of(xs[0]))
    shape[dimension] = sum(shape_of(x)[dimension] for x in xs)
    result = tensor(shape, element_type(xs[0]))
    return op("concatenate", xs, [result], dimension=i64(dimension)).result


def slice_(
    x: Value,
    start: Sequence[int],
    limit: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Value:
    """`x[start:limit:strides]` in every dimension."""
    strides = strides or [1] * len(start)
    shape = [
        max(0, -(-(hi - lo) // step))
        for lo, hi, step in zip(start, limit, strides, strict=True)
    ]
    return op(
        "slice",
        [x],
        [tensor(shape, element_type(x))],
        start_indices=i64s(start),
        limit_indices=i64s(limit),
        strides=i64s(strides),
    ).result


def pad(
    x: Value,
    value: Value,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int] | None = None,
) -> Value:
    """Edge padding may be negative; `interior` goes between elements."""
    interior = interior or [0] * len(low)
    shape = [
        lo + hi + n + max(n - 1, 0) * between
        for n, lo, hi, between in zip(shape_of(x), low, high, interior, strict=True)
    ]
    return op(
        "pad",
        [x, value],
        [tensor(shape, element_type(x))],
        edge_padding_low=i64s(low),
        edge_padding_high=i64s(high),
        interior_padding=i64s(interior),
    ).result


def reverse(x: Value, dimensions: Sequence[int]) -> Value:
    """Flipped along `dimensions`."""
    if not dimensions:
        return x
    return op("reverse", [x], [x.type], dimensions=i64s(dimensions)).result


def dynamic_slice(x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
    """A window at run-time offsets, clamped into the operand."""
    result = tensor(sizes, element_type(x))
    return op("dynamic_slice", [x, *starts], [result], slice_sizes=i64s(sizes)).result


def dynamic_update_slice(x: Value, update: Value, starts: Sequence[Value]) -> Value:
    """`x` with `update` written at run-time offsets, clamped."""
    return op("dynamic_update_slice", [x, update, *starts], [x.type]).result


# --- reductions and contractions ---


def body(
    operation: ir.Operation,
    types: Sequence[ir.Type],
    build: Callable[..., Value | Sequence[Value]],
    region: int = 0,
) -> None:
    """Fill a region with one block: `build(*arguments)` gives what it returns."""
    location = operation.location
    block = operation.regions[region].blocks.append(
        *types, arg_locs=[location] * len(types)
    )
    with ir.InsertionPoint(block), location:
        results = build(*block.arguments)
        op("return", [results] if isinstance(results, Value) else list(results), [])


def reduce(
    x: Value,
    init: Value,
    dimensions: Sequence[int],
    combine: Callable[[Value, Value], Value],
) -> Value:
    """Fold `dimensions` with an associative `combine` whose identity is `init`."""
    if not dimensions:
        return x
    kept = [n for i, n in enumerate(shape_of(x)) if i not in set(dimensions)]
    operation = op(
        "reduce",
        [x, init],
        [tensor(kept, element_type(x))],
        regions=1,
        dimensions=i64s(sorted(dimensions)),
    )
    body(operation, [init.type, init.type], combine)
    return operation.result


def reduce_sum(x: Value, dimensions: Sequence[int]) -> Value:
    """Σ over `dimensions`."""
    return reduce(x, scalar(0, element_type(x)), dimensions, add)


def sum_all(x: Value) -> Value:
    """Σ over everything, a rank-0 tensor."""
    return reduce_sum(x, range(len(shape_of(x))))


def dot_general(
    lhs: Value,
    rhs: Value,
    *,
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    contract: tuple[Sequence[int], Sequence[int]],
    element: ir.Type | None = None,
    precision: ir.Attribute | None = None,
    algorithm: ir.Attribute | None = None,
) -> Value:
    """Result dimensions: batch, free of lhs, free of rhs (ascending each)."""
    ls, rs = shape_of(lhs), shape_of(rhs)
    shape = [ls[d] for d in batch[0]]
    for dims, b, c in ((ls, batch[0], contract[0]), (rs, batch[1], contract[1])):
        shape += [n for d, n in enumerate(dims) if d not in {*b, *c}]
    numbers = stablehlo.DotDimensionNumbers.get(
        list(batch[0]), list(batch[1]), list(contract[0]), list(contract[1])
    )
    return op(
        "dot_general",
        [lhs, rhs],
        [tensor(shape, element or element_type(lhs))],
        dot_dimension_numbers=numbers,
        precision_config=precision,
        algorithm=algorithm,
    ).result
