"""CHLO: the client ops that JAX and torch-mlir emit.

They are differentiated before they are legalised: the polynomials that take
their place have inaccurate and large derivatives.
"""

from math import pi, prod, sqrt

from pcp.autodiff.core.kinds import Elementwise, Linear, NoGradient, Site, Vjp
from pcp.autodiff.core.values import scale
from pcp.autodiff.rules.bessel import bessel_i0e, epsilon
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, scatter

Value = ir.Value


def _chlo(name: str, *operands: Value) -> Value:
    return hlo.op(f"chlo.{name}", operands, [operands[-1].type]).result


def _one(x: Value) -> Value:
    return hlo.constant_like(x, 1.0)


def _square(x: Value) -> Value:
    return hlo.multiply(x, x)


def _bell(g: Value, x: Value, sign: float) -> Value:
    """±g·(2/√π)·exp(−x²)."""
    bell = hlo.exponential(hlo.negate(_square(x)))
    return hlo.multiply(scale(g, sign * 2 / sqrt(pi)), bell)


def _polygamma(g: Value, n: Value, x: Value, y: Value) -> Value:
    return hlo.multiply(g, _chlo("polygamma", hlo.add(n, _one(n)), x))


def _bessel(g: Value, x: Value, y: Value) -> Value:
    """d I₁ₑ = I₀ₑ − I₁ₑ·(sign x + 1/x), which is ½ at 0."""
    element = hlo.element_type(x)
    tiny = hlo.compare("LE", hlo.abs(x), hlo.constant_like(x, epsilon(element)))
    safe = hlo.select(tiny, _one(x), x)
    inverse = hlo.divide(_one(x), safe)
    slope = hlo.subtract(
        bessel_i0e(safe), hlo.multiply(y, hlo.add(hlo.sign(safe), inverse))
    )
    half = hlo.constant_like(x, 0.5)
    return hlo.multiply(g, hlo.select(tiny, half, slope))


def _zeta(g: Value, x: Value, q: Value, y: Value) -> Value:
    """∂ζ(x, q)/∂q = −x·ζ(x+1, q)."""
    more = _chlo("zeta", hlo.add(x, _one(x)), q)
    return hlo.negate(hlo.multiply(g, hlo.multiply(x, more)))


def _top_k(at: Site) -> list[Value | None]:
    """g goes back to the positions that were picked, row by row."""
    g, shape = at.g, hlo.shape_of(at[0])
    picked = hlo.shape_of(g)
    rows, n, k = prod(shape[:-1]), shape[-1], picked[-1]
    windows = Windows((), (1,), (0,), (0,), (1,), 2)
    total = scatter(
        hlo.zeros(hlo.tensor((rows, n), hlo.element_type(g))),
        hlo.reshape(at.op.results[1], [rows, k, 1]),
        hlo.reshape(g, [rows, k]),
        windows,
        hlo.add,
        unique=True,
    )
    return [hlo.reshape(total, shape)]


def _reciprocal_root(g: Value, inside: Value) -> Value:
    return hlo.multiply(g, hlo.rsqrt(inside))


_test = NoGradient("its results are booleans")

RULES = {
    "chlo.acos": Elementwise(
        lambda g, x, y: hlo.negate(
            _reciprocal_root(g, hlo.subtract(_one(x), _square(x)))
        )
    ),
    "chlo.acosh": Elementwise(
        lambda g, x, y: _reciprocal_root(g, hlo.subtract(_square(x), _one(x)))
    ),
    "chlo.asin": Elementwise(
        lambda g, x, y: _reciprocal_root(g, hlo.subtract(_one(x), _square(x)))
    ),
    "chlo.asinh": Elementwise(
        lambda g, x, y: _reciprocal_root(g, hlo.add(_square(x), _one(x)))
    ),
    "chlo.atan": Elementwise(
        lambda g, x, y: hlo.divide(g, hlo.add(_one(x), _square(x)))
    ),
    "chlo.atanh": Elementwise(
        lambda g, x, y: hlo.divide(
            g, hlo.multiply(hlo.add(_one(x), x), hlo.subtract(_one(x), x))
        )
    ),
    "chlo.bessel_i1e": Elementwise(_bessel),
    "chlo.conj": Linear(lambda at, g: hlo.conj(g)),
    "chlo.cosh": Elementwise(lambda g, x, y: hlo.multiply(g, _chlo("sinh", x))),
    "chlo.digamma": Elementwise(
        lambda g, x, y: hlo.multiply(g, _chlo("polygamma", _one(x), x))
    ),
    "chlo.erf": Elementwise(lambda g, x, y: _bell(g, x, 1.0)),
    "chlo.erf_inv": Elementwise(
        lambda g, x, y: hlo.multiply(
            scale(g, sqrt(pi) / 2), hlo.exponential(_square(y))
        )
    ),
    "chlo.erfc": Elementwise(lambda g, x, y: _bell(g, x, -1.0)),
    "chlo.lgamma": Elementwise(lambda g, x, y: hlo.multiply(g, _chlo("digamma", x))),
    "chlo.polygamma": Elementwise(None, _polygamma),
    "chlo.sinh": Elementwise(lambda g, x, y: hlo.multiply(g, _chlo("cosh", x))),
    "chlo.square": Elementwise(lambda g, x, y: hlo.multiply(g, scale(x, 2.0))),
    "chlo.tan": Elementwise(
        lambda g, x, y: hlo.multiply(g, hlo.add(_one(y), _square(y)))
    ),
    "chlo.top_k": Vjp(_top_k),
    "chlo.zeta": Elementwise(None, _zeta),
    "chlo.constant": NoGradient("it has no differentiable input"),
    "chlo.constant_like": NoGradient("only the shape of its operand matters"),
    "chlo.is_inf": _test,
    "chlo.is_neg_inf": _test,
    "chlo.is_pos_inf": _test,
    "chlo.mulhi": NoGradient("its results are integers"),
    "chlo.next_after": NoGradient("piecewise constant steps between numbers"),
}
