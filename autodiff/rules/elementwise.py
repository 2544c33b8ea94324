"""Elementwise ops: g times the derivative, from the operands and the result.

At a tie of `maximum` or `minimum` both operands get half; `abs` has slope +1 at
zero; `clamp` passes nothing on at its bounds: the choices of JAX. Poles stay
poles: no epsilon and no guard is slipped in.
"""

from pcp.autodiff.core.kinds import Bilinear, Elementwise, Linear, NoGradient, Site, Vjp
from pcp.autodiff.core.values import scale, splat_of, sum_all, was_integer
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


def _one_minus(x: Value) -> Value:
    return hlo.subtract(hlo.constant_like(x, 1.0), x)


def _one_plus(x: Value) -> Value:
    return hlo.add(x, hlo.constant_like(x, 1.0))


def _abs(g: Value, x: Value, y: Value) -> Value:
    if not hlo.is_complex(hlo.element_type(x)):
        positive = hlo.compare("GE", x, hlo.zeros(x.type))
        return hlo.select(positive, g, hlo.negate(g))
    at_zero = hlo.compare("EQ", y, hlo.zeros(y.type))
    safe = hlo.select(at_zero, hlo.constant_like(y, 1.0), y)
    ratio = hlo.divide(g, safe)
    return hlo.multiply(hlo.complex_(ratio, hlo.zeros(ratio.type)), hlo.conj(x))


def _tanh(g: Value, x: Value, y: Value) -> Value:
    """(1−y²) as (1+y)(1−y): no cancellation where y nears ±1."""
    return hlo.multiply(hlo.add(g, hlo.multiply(g, y)), _one_minus(y))


def _winner(direction: str, mine: int):
    """max and min: all of g to the winner, half to each at a tie."""

    def derive(g: Value, a: Value, b: Value, y: Value) -> Value:
        x, other = (a, b) if mine == 0 else (b, a)
        half = hlo.select(hlo.compare("EQ", x, other), scale(g, 0.5), hlo.zeros(g.type))
        return hlo.select(hlo.compare(direction, x, other), g, half)

    return derive


def _remainder_rhs(g: Value, a: Value, b: Value, y: Value) -> Value:
    ratio = hlo.divide(a, b)
    whole = hlo.multiply(hlo.sign(ratio), hlo.floor(hlo.abs(ratio)))
    return hlo.negate(hlo.multiply(g, whole))


def _power_lhs(g: Value, a: Value, b: Value, y: Value) -> Value | None:
    """g·b·aᵇ⁻¹; 2ag, g and nothing where the exponent is the constant 2, 1, 0.

    An integer exponent of 0 has slope 0 even at a = 0, as `jax.grad` has it.
    """
    match splat_of(b):
        case 0:
            return None
        case 1:
            return g
        case 2:
            return hlo.multiply(g, scale(a, 2.0))
        case 3:
            return hlo.multiply(g, scale(hlo.multiply(a, a), 3.0))
    less = hlo.subtract(b, hlo.constant_like(b, 1.0))
    if splat_of(b) is not None or not was_integer(b):
        return hlo.multiply(g, hlo.multiply(b, hlo.power(a, less)))
    none = hlo.compare("EQ", b, hlo.zeros(b.type))  # a⁰ is 1 at a = 0 too
    safe = hlo.select(none, hlo.constant_like(b, 1.0), less)
    return hlo.multiply(g, hlo.multiply(b, hlo.power(a, safe)))


def _power_rhs(g: Value, a: Value, b: Value, y: Value) -> Value:
    """g·y·log a, with log 0 read as 0 so that 0ᵇ has slope zero."""
    at_zero = hlo.compare("EQ", a, hlo.zeros(a.type))
    safe = hlo.select(at_zero, hlo.constant_like(a, 1.0), a)
    return hlo.multiply(g, hlo.multiply(hlo.log(safe), y))


def _atan2(g: Value, a: Value, b: Value, sign: float, numerator: int) -> Value:
    square = hlo.add(hlo.multiply(a, a), hlo.multiply(b, b))
    slope = hlo.divide((a, b)[numerator], square)
    return hlo.multiply(g, slope if sign > 0 else hlo.negate(slope))


def _clamp(at: Site) -> list[Value | None]:
    """x̄ strictly between the bounds; lō below where lo<hi; hī above.

    A scalar bound is broadcast first, and its cotangent is the sum.
    """
    low, x, high = at.inputs
    shape = hlo.shape_of(x)
    wide_low, wide_high = (
        bound if hlo.shape_of(bound) == shape else hlo.splat(bound, shape)
        for bound in (low, high)
    )
    below, above = hlo.compare("GT", wide_low, x), hlo.compare("LT", wide_high, x)
    inside = hlo.and_(hlo.compare("GT", x, wide_low), hlo.compare("LT", x, wide_high))
    masks = (hlo.and_(below, hlo.compare("LT", wide_low, wide_high)), inside, above)
    zero = hlo.zeros(x.type)
    return [
        _fit(hlo.select(mask, at.g, zero), value) if wanted else None
        for mask, value, wanted in zip(masks, at.inputs, at.wanted, strict=True)
    ]


def _fit(cotangent: Value, primal: Value) -> Value:
    """Sum over everything where the primal was a broadcast scalar."""
    if hlo.shape_of(cotangent) == hlo.shape_of(primal):
        return cotangent
    return sum_all(cotangent)


def _convert(at: Site, g: Value) -> Value:
    """Back to the operand's element type; the imaginary part of g falls away."""
    element = hlo.element_type(at[0])
    if not hlo.is_complex(element):
        return hlo.convert(hlo.real(g) if _is_complex(g) else g, element)
    if _is_complex(g):
        return hlo.convert(g, element)
    part = hlo.convert(g, ir.ComplexType(element).element_type)
    return hlo.complex_(part, hlo.zeros(part.type))


def _is_complex(x: Value) -> bool:
    return hlo.is_complex(hlo.element_type(x))


def _real(at: Site, g: Value) -> Value:
    if not _is_complex(at[0]):
        return g
    return hlo.complex_(g, hlo.zeros(g.type))


def _imag(at: Site, g: Value) -> Value | None:
    if not _is_complex(at[0]):
        return None
    return hlo.complex_(hlo.zeros(g.type), hlo.negate(g))


def _reduce_precision(at: Site, g: Value) -> Value:
    return hlo.op(
        "reduce_precision",
        [g],
        [g.type],
        exponent_bits=at.attribute("exponent_bits"),
        mantissa_bits=at.attribute("mantissa_bits"),
    ).result


def _select(branch: int):
    def transpose(at: Site, g: Value) -> Value:
        sides = (g, hlo.zeros(g.type))
        return hlo.select(at[0], *(sides if branch == 1 else sides[::-1]))

    return transpose


_integer = NoGradient("its results are integers or booleans")
_steps = NoGradient("piecewise constant")

RULES = {
    # --- linear ---
    "add": Linear(lambda at, g: g, lambda at, g: g),
    "subtract": Linear(lambda at, g: g, lambda at, g: hlo.negate(g)),
    "negate": Linear(lambda at, g: hlo.negate(g)),
    "convert": Linear(_convert),
    "reduce_precision": Linear(_reduce_precision),
    "select": Linear(None, _select(1), _select(2)),
    "complex": Linear(lambda at, g: hlo.real(g), lambda at, g: hlo.negate(hlo.imag(g))),
    "real": Linear(_real),
    "imag": Linear(_imag),
    # --- products ---
    "multiply": Bilinear(
        lambda at, g: hlo.multiply(g, at[1]), lambda at, g: hlo.multiply(g, at[0])
    ),
    "divide": Elementwise(
        lambda g, a, b, y: hlo.divide(g, b),
        lambda g, a, b, y: hlo.negate(hlo.multiply(hlo.divide(g, b), y)),
    ),
    "power": Elementwise(_power_lhs, _power_rhs),
    "remainder": Elementwise(lambda g, a, b, y: g, _remainder_rhs),
    "maximum": Elementwise(_winner("GT", 0), _winner("GT", 1)),
    "minimum": Elementwise(_winner("LT", 0), _winner("LT", 1)),
    "clamp": Vjp(_clamp),
    "atan2": Elementwise(
        lambda g, a, b, y: _atan2(g, a, b, +1.0, 1),
        lambda g, a, b, y: _atan2(g, a, b, -1.0, 0),
    ),
    # --- functions of one variable ---
    "abs": Elementwise(_abs),
    "cbrt": Elementwise(lambda g, x, y: hlo.divide(g, scale(hlo.multiply(y, y), 3.0))),
    "cosine": Elementwise(lambda g, x, y: hlo.negate(hlo.multiply(g, hlo.sine(x)))),
    "exponential": Elementwise(lambda g, x, y: hlo.multiply(g, y)),
    "exponential_minus_one": Elementwise(lambda g, x, y: hlo.multiply(g, _one_plus(y))),
    "log": Elementwise(lambda g, x, y: hlo.divide(g, x)),
    "log_plus_one": Elementwise(lambda g, x, y: hlo.divide(g, _one_plus(x))),
    "logistic": Elementwise(
        lambda g, x, y: hlo.multiply(g, hlo.multiply(y, _one_minus(y)))
    ),
    "rsqrt": Elementwise(
        lambda g, x, y: hlo.multiply(scale(g, -0.5), hlo.divide(y, x))
    ),
    "sine": Elementwise(lambda g, x, y: hlo.multiply(g, hlo.cosine(x))),
    "sqrt": Elementwise(lambda g, x, y: hlo.divide(scale(g, 0.5), y)),
    "tan": Elementwise(lambda g, x, y: hlo.multiply(g, _one_plus(hlo.multiply(y, y)))),
    "tanh": Elementwise(_tanh),
    # --- nothing flows through these ---
    "ceil": _steps,
    "floor": _steps,
    "round_nearest_afz": _steps,
    "round_nearest_even": _steps,
    "sign": _steps,
    "and": _integer,
    "or": _integer,
    "xor": _integer,
    "not": _integer,
    "compare": _integer,
    "count_leading_zeros": _integer,
    "popcnt": _integer,
    "is_finite": _integer,
    "shift_left": _integer,
    "shift_right_arithmetic": _integer,
    "shift_right_logical": _integer,
    "bitcast_convert": NoGradient("bits have no derivative"),
}
