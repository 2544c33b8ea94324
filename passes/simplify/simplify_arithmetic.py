"""Patterns of pcp-simplify on elementwise arithmetic, comparisons and constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis.facts import never_negative_zero, not_negative
from pcp.passes.core import constants
from pcp.passes.core import fold as folding
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.rewriting import defining
from pcp.passes.simplify.simplify_options import Options

Values = Sequence[ir.Value]

# Constants of up to this many elements are computed here; splats of any size are.
FOLD_LIMIT = 256


# --- constants ---


def fold(op: ir.Operation, options: Options) -> Values | None:
    """Any op on constants."""
    if op.name not in folding.FOLDS or not len(op.operands):
        return None
    return _fold_splats(op) or _fold_elements(op)


def _fold_splats(op: ir.Operation) -> Values | None:
    numbers = [constants.splat(v) for v in op.operands]
    if any(n is None for n in numbers):
        return None
    if op.name not in ELEMENTWISE:
        if len(set(map(_bits, numbers))) != 1 or not _only_moves(op):
            return None
        return [hlo.constant(numbers[0], op.result.type)]
    dtypes = [constants.dtype_of(hlo.element_type(v)) for v in op.operands]
    if None in dtypes:
        return None
    inputs = [np.array(n, d) for n, d in zip(numbers, dtypes, strict=True)]
    result = folding.apply(op, inputs)
    return None if result is None else [hlo.constant(result.item(), op.result.type)]


def _bits(number: float | int | bool | None) -> tuple[object, bool]:
    return number, isinstance(number, float) and math.copysign(1, number) < 0


def _only_moves(op: ir.Operation) -> bool:
    return op.name.removeprefix("stablehlo.") in (
        "broadcast_in_dim",
        "concatenate",
        "reshape",
        "reverse",
        "slice",
        "transpose",
    )


def _fold_elements(op: ir.Operation) -> Values | None:
    if hlo.size(op.result) > FOLD_LIMIT:
        return None
    inputs = [constants.array(v, FOLD_LIMIT) for v in op.operands]
    if any(x is None for x in inputs):
        return None
    result = folding.apply(op, [x for x in inputs if x is not None])
    return None if result is None else [constants.make(result, op.result.type)]


def _is_zero(value: ir.Value, *, negative: bool | None = None) -> bool:
    """A constant zero; of floats of this sign, or of both for None."""
    number = constants.splat(value)
    if number is None or number != 0:
        return False
    if negative is None or not hlo.is_float(hlo.element_type(value)):
        return True
    return (math.copysign(1, number) < 0) == negative


def _is(value: ir.Value, number: float) -> bool:
    return constants.splat(value) == number


def _floats(value: ir.Value) -> bool:
    return hlo.is_float(hlo.element_type(value))


def _integers(value: ir.Value) -> bool:
    return isinstance(hlo.element_type(value), ir.IntegerType)


def _operand_of(value: ir.Value, name: str) -> ir.Value | None:
    """The operand of the op `name` that makes `value`, or None."""
    op = defining(value, name)
    return None if op is None else op.operands[0]


# --- sums ---


def add_neutral(op: ir.Operation, options: Options) -> Values | None:
    """`x + 0`: of floats, +0.0 is neutral only to what is never -0.0."""
    left, right = op.operands
    for x, zero in ((left, right), (right, left)):
        if not _is_zero(zero):
            continue
        exact = not _floats(x) or _is_zero(zero, negative=True)
        if exact or not options.signed_zeros or never_negative_zero(x):
            return [x]
    return None


def add_negated(op: ir.Operation, options: Options) -> Values | None:
    """`x + (-y)` is `x - y`."""
    left, right = op.operands
    if (y := _operand_of(right, "negate")) is not None:
        return [hlo.subtract(left, y)]
    if (y := _operand_of(left, "negate")) is not None:
        return [hlo.subtract(right, y)]
    return None


def subtract(op: ir.Operation, options: Options) -> Values | None:
    """`x - 0`, `0 - x`, `x - x` of integers, `x - (-y)`."""
    left, right = op.operands
    if _is_zero(right, negative=False):
        return [left]
    if (y := _operand_of(right, "negate")) is not None:
        return [hlo.add(left, y)]
    loose = not options.signed_zeros or _integers(left)
    if _is_zero(left, negative=True) or (loose and _is_zero(left)):
        return [hlo.negate(right)]
    if left == right and _integers(left):
        return [hlo.zeros(op.result.type)]
    return None


# --- products ---


def multiply(op: ir.Operation, options: Options) -> Values | None:
    """By 1, by -1, by 0 of integers, and of two negated values."""
    left, right = op.operands
    for x, factor in ((left, right), (right, left)):
        if _is(factor, 1):
            return [x]
        if _is_zero(factor) and _integers(x):
            return [hlo.zeros(op.result.type)]
        if _is(factor, -1) and not hlo.is_complex(hlo.element_type(x)):
            return [hlo.negate(x)]
    a, b = _operand_of(left, "negate"), _operand_of(right, "negate")
    if a is not None and b is not None:
        return [hlo.multiply(a, b)]
    return None


def divide(op: ir.Operation, options: Options) -> Values | None:
    """By 1, and by a power of two as the product with its reciprocal."""
    left, right = op.operands
    number = constants.splat(right)
    if number is None:
        return None
    if number == 1:
        return [left]
    if not _floats(left) or number == 0 or not math.isfinite(number):
        return None
    exact = abs(math.frexp(number)[0]) == 0.5 and 2**-60 <= abs(number) <= 2**60
    half = hlo.tensor_type(left).element_type.width < 32
    if (exact and not half) or options.reassociate:
        return [hlo.multiply(left, hlo.constant_like(left, 1 / number))]
    return None


def power(op: ir.Operation, options: Options) -> Values | None:
    """Constant exponents 1, 2, 1/2 and -1/2."""
    base, exponent = op.operands
    number = constants.splat(exponent)
    if number is None or not (_floats(base) or number in (1, 2)):
        return None
    if number == 1:
        return [base]
    if number == 2:
        return [hlo.multiply(base, base)]
    if number == 0.5 and not_negative(base):
        return [hlo.sqrt(base)]
    if number == -0.5 and options.reassociate and not_negative(base):
        return [hlo.rsqrt(base)]
    return None


# --- one operand ---


def twice(op: ir.Operation, options: Options) -> Values | None:
    """What undoes itself: negate, not."""
    inner = _operand_of(op.operands[0], op.name.removeprefix("stablehlo."))
    return None if inner is None else [inner]


def absolute(op: ir.Operation, options: Options) -> Values | None:
    """`|-x|` and `||x||`."""
    x = op.operands[0]
    if (inner := _operand_of(x, "negate")) is not None:
        return [hlo.abs(inner)]
    return [x] if defining(x, "abs") is not None else None


_INVERSE = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}


def inverse_compare(op: ir.Operation, options: Options) -> Values | None:
    """`not (a < b)` is `a >= b`, of integers; EQ and NE of floats too.

    Only if nobody else reads the comparison: a second one reads `a` and `b` again.
    """
    compared = defining(op.operands[0], "compare")
    if compared is None or sum(1 for _ in compared.result.uses) != 1:
        return None
    direction = folding.direction(compared)
    left, right = compared.operands
    if direction not in ("EQ", "NE") and not _integers(left):
        return None
    kind = hlo.attribute(compared, "compare_type")
    word = str(kind).split()[-1].rstrip(">") if kind else None
    return [hlo.compare(_INVERSE[direction], left, right, word)]


def convert(op: ir.Operation, options: Options) -> Values | None:
    """To the same type, and through a type that holds every value."""
    x = op.operands[0]
    if x.type == op.result.type:
        return [x]
    source = _operand_of(x, "convert")
    if source is None or not holds(hlo.element_type(x), hlo.element_type(source)):
        return None
    return [hlo.convert(source, hlo.element_type(op.result))]


# Bits of the significand and of the exponent.
_FORMAT = {"f64": (53, 11), "f32": (24, 8), "bf16": (8, 8), "f16": (11, 5)}


def holds(wide: ir.Type, narrow: ir.Type) -> bool:
    """Whether each value of `narrow` is one of `wide`, and converts back and on.

    Booleans are left out: converting to one is a comparison with zero.
    """
    if isinstance(narrow, ir.IntegerType) and narrow.width == 1:
        return False
    if isinstance(wide, ir.IntegerType) and wide.width == 1:
        return False
    have = _FORMAT.get(str(wide))
    if isinstance(narrow, ir.IntegerType):
        magnitude = narrow.width - (not narrow.is_unsigned)
        if have is not None:
            return magnitude <= have[0] and magnitude < 2 ** (have[1] - 1)
        return (
            isinstance(wide, ir.IntegerType)
            and wide.width > narrow.width
            and wide.is_unsigned == narrow.is_unsigned
        )
    need = _FORMAT.get(str(narrow))
    return (
        need is not None
        and have is not None
        and need[0] <= have[0]
        and (need[1] <= have[1])
    )


# --- choices ---


def extremum(op: ir.Operation, options: Options) -> Values | None:
    """`max(x, x)`, and against the infinity that never wins."""
    left, right = op.operands
    if left == right:
        return [left]
    never = -math.inf if op.name.endswith("maximum") else math.inf
    for x, bound in ((left, right), (right, left)):
        if _floats(x) and _is(bound, never):
            return [x]
    return None


def clamp(op: ir.Operation, options: Options) -> Values | None:
    """Between the infinities."""
    low, x, high = op.operands
    wide = _floats(x) and _is(low, -math.inf) and _is(high, math.inf)
    return [x] if wide else None


def select(op: ir.Operation, options: Options) -> Values | None:
    """By a constant, between equal values, by a negated predicate."""
    predicate, left, right = op.operands
    if left == right:
        return [left]
    if (known := constants.splat(predicate)) is not None:
        return [left if known else right]
    if (inner := _operand_of(predicate, "not")) is not None:
        return [hlo.select(inner, right, left)]
    if (after := _rectified(op)) is not None:
        test = hlo.compare("LE", after, hlo.zeros(after.type))
        return [hlo.select(test, left, right)]
    return None


def _rectified(op: ir.Operation) -> ir.Value | None:
    """`select(x <= 0, 0, x)` of an earlier op with the predicate that `op` has.

    It is at most 0 where x is, so that a derivative need not keep x as well.
    """
    predicate, test = op.operands[0], defining(op.operands[0], "compare")
    if test is None or folding.direction(test) != "LE":
        return None
    x, bound = test.operands
    if not hlo.is_float(hlo.element_type(x)) or not _is_zero(bound):
        return None
    if "TOTALORDER" in str(hlo.attribute(test, "compare_type")):
        return None
    for use in predicate.uses:
        other = use.owner.operation
        if other.name != "stablehlo.select" or other.block != op.block:
            continue
        if _is_zero(other.operands[1]) and other.operands[2] == x:
            return other.result if other.is_before_in_block(op) else None
    return None


def compare(op: ir.Operation, options: Options) -> Values | None:
    """An integer with itself."""
    left, right = op.operands
    if left != right or not _integers(left):
        return None
    return [hlo.constant(folding.direction(op) in ("EQ", "GE", "LE"), op.result.type)]


def logical(op: ir.Operation, options: Options) -> Values | None:
    """and, or, xor with all ones, with zero, with itself."""
    left, right = op.operands
    name = op.name.removeprefix("stablehlo.")
    if left == right:
        return [hlo.zeros(op.result.type)] if name == "xor" else [left]
    for x, mask in ((left, right), (right, left)):
        if _is_zero(mask):
            return [mask if name == "and" else x]
        if _is_ones(mask) and name != "xor":
            return [x if name == "and" else mask]
    return None


def _is_ones(value: ir.Value) -> bool:
    number = constants.splat(value)
    if number is None:
        return False
    integer = ir.IntegerType(hlo.element_type(value))
    if integer.is_unsigned or integer.width == 1:
        return int(number) == 2**integer.width - 1
    return number == -1
