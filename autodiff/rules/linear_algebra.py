"""fft, cholesky and triangular_solve.

Cholesky reads one triangle of its input, and its cotangent lies in that triangle
(Murray, "Differentiation of the Cholesky decomposition", 2016, in the complex
convention of `kinds`).
"""

from math import prod

from pcp.autodiff.kinds import Linear, Site, Vjp
from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo

Value = ir.Value

# --- fft ---


def fft(x: Value, kind: str, length: list[int], result: ir.Type) -> Value:
    """`stablehlo.fft` over the last dimensions."""
    return hlo.op(
        "fft",
        [x],
        [result],
        fft_type=stablehlo.FftTypeAttr.get(kind),
        fft_length=hlo.i64s(length),
    ).result


def _fft(at: Site, g: Value) -> Value:
    """FFT and IFFT are symmetric matrices; the real ones drop or double halves."""
    kind = stablehlo.FftTypeAttr(at.attribute("fft_type")).value
    length = at.ints("fft_length")
    if kind in ("FFT", "IFFT"):
        return fft(g, kind, length, g.type)
    return (_rfft if kind == "RFFT" else _irfft)(at, g, length)


def _rfft(at: Site, g: Value, length: list[int]) -> Value:
    """The real part of the FFT of g, padded to the full length."""
    rank = len(hlo.shape_of(g))
    more = [0] * rank
    more[-1] = length[-1] - hlo.shape_of(g)[-1]
    zero = hlo.scalar(0, hlo.element_type(g))
    full = hlo.pad(g, zero, [0] * rank, more) if more[-1] else g
    return hlo.real(fft(full, "FFT", length, full.type))


def _irfft(at: Site, g: Value, length: list[int]) -> Value:
    """conj(RFFT g)/n, doubled except at frequency 0 and, for even n, n/2.

    The doubled ones stand for two frequencies each in the real signal.
    """
    spectrum = hlo.conj(fft(g, "RFFT", length, at[0].type))
    half, last = hlo.shape_of(at[0])[-1], length[-1]
    real = hlo.like(at[0], element=hlo.element_type(g))
    i32 = hlo.like(real, element=ir.IntegerType.get_signless(32))
    frequency = hlo.iota(i32, len(hlo.shape_of(at[0])) - 1)
    once = hlo.compare("EQ", frequency, hlo.zeros(i32))
    if last % 2 == 0:
        top = hlo.compare("EQ", frequency, hlo.constant(half - 1, i32))
        once = hlo.or_(once, top)
    scale = 1.0 / prod(length)
    factor = hlo.select(once, hlo.constant(scale, real), hlo.constant(2 * scale, real))
    return hlo.multiply(spectrum, hlo.complex_(factor, hlo.zeros(real)))


# --- triangles ---


def _last_swapped(x: Value) -> Value:
    order = list(range(len(hlo.shape_of(x))))
    order[-2:] = order[:-3:-1]
    return hlo.transpose(x, order)


def _adjoint(x: Value) -> Value:
    return hlo.conj(_last_swapped(x))


def _matmul(a: Value, b: Value) -> Value:
    """Batched product of the last two dimensions."""
    rank = len(hlo.shape_of(a))
    batch = list(range(rank - 2))
    return hlo.dot_general(
        a, b, batch=(batch, batch), contract=([rank - 1], [rank - 2])
    )


def _masked(x: Value, direction: str) -> Value:
    """Keep the entries whose row is GE, GT, LE, LT or EQ their column."""
    i32 = hlo.like(x, element=ir.IntegerType.get_signless(32))
    rank = len(hlo.shape_of(x))
    keep = hlo.compare(direction, hlo.iota(i32, rank - 2), hlo.iota(i32, rank - 1))
    return hlo.select(keep, x, hlo.zeros(x.type))


def solve(
    a: Value, b: Value, *, left: bool, lower: bool, unit: bool, transpose: str
) -> Value:
    """`stablehlo.triangular_solve`."""
    return hlo.op(
        "triangular_solve",
        [a, b],
        [b.type],
        left_side=ir.BoolAttr.get(left),
        lower=ir.BoolAttr.get(lower),
        unit_diagonal=ir.BoolAttr.get(unit),
        transpose_a=stablehlo.TransposeAttr.get(transpose),
    ).result


def _flag(at: Site, name: str) -> bool:
    found = at.attribute(name)
    return bool(found) and ir.BoolAttr(found).value


def _triangular_solve(at: Site) -> list[Value | None]:
    """x = op(a)⁻¹b: b̄ solves with the unconjugated transpose of op(a).

    The cotangent of op(a) is −b̄xᵀ (left) or −xᵀb̄ (right); it is brought to a, of
    which only the triangle that is read has one.
    """
    a, x = at[0], at.y
    left, lower, unit = (_flag(at, n) for n in ("left_side", "lower", "unit_diagonal"))
    how = stablehlo.TransposeAttr(at.attribute("transpose_a")).value
    matrix = hlo.conj(a) if how == "ADJOINT" else a
    back = "TRANSPOSE" if how == "NO_TRANSPOSE" else "NO_TRANSPOSE"
    b_bar = solve(matrix, at.g, left=left, lower=lower, unit=unit, transpose=back)
    if not at.wanted[0]:
        return [None, b_bar]
    flipped = _last_swapped(x)
    outer = _matmul(b_bar, flipped) if left else _matmul(flipped, b_bar)
    outer = hlo.negate(outer)
    if how != "NO_TRANSPOSE":
        outer = _last_swapped(outer)
    if how == "ADJOINT":
        outer = hlo.conj(outer)
    direction = ("GT" if unit else "GE") if lower else ("LT" if unit else "LE")
    return [_masked(outer, direction), b_bar]


def _cholesky(at: Site) -> list[Value | None]:
    """S = L⁻ᴴ Φ(Lᴴ tril(ḡ)) L⁻¹ with the diagonal halved in Φ, then one triangle."""
    lower = _flag(at, "lower")
    factor = _masked(at.y if lower else _adjoint(at.y), "GE")
    g = hlo.conj(at.g) if lower else _last_swapped(at.g)
    inner = _matmul(_adjoint(factor), _masked(g, "GE"))
    diagonal = _masked(inner, "EQ")
    half = hlo.multiply(diagonal, hlo.constant_like(diagonal, 0.5))
    phi = hlo.subtract(_masked(inner, "GE"), half)
    common = {"lower": True, "unit": False}
    s = solve(factor, phi, left=True, transpose="ADJOINT", **common)
    s = solve(factor, s, left=False, transpose="NO_TRANSPOSE", **common)
    whole = hlo.add(s, _adjoint(s))
    triangle = hlo.subtract(_masked(whole, "GE"), _masked(s, "EQ"))
    return [hlo.conj(triangle) if lower else _last_swapped(triangle)]


RULES = {
    "fft": Linear(_fft),
    "triangular_solve": Vjp(_triangular_solve),
    "cholesky": Vjp(_cholesky),
}
