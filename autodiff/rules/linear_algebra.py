"""fft, cholesky and triangular_solve.

Cholesky reads one triangle of its input, and its cotangent lies in that triangle
(Murray, "Differentiation of the Cholesky decomposition", 2016, in the complex
convention of `kinds`).
"""

from math import prod

from pcp.autodiff.core.kinds import Linear, Site, Vjp
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
    """n·IRFFT(conj g), halved where the inverse would count a frequency twice."""
    scale = float(prod(length))
    weighted = _weighted(hlo.conj(g), length[-1], scale, scale / 2)
    return fft(weighted, "IRFFT", length, at[0].type)


def _irfft(at: Site, g: Value, length: list[int]) -> Value:
    """conj(RFFT g)/n, doubled where a frequency stands for two of the signal."""
    scale = 1.0 / prod(length)
    spectrum = hlo.conj(fft(g, "RFFT", length, at[0].type))
    return _weighted(spectrum, length[-1], scale, 2 * scale)


def _weighted(spectrum: Value, length: int, single: float, paired: float) -> Value:
    """A half spectrum times `single` at frequency 0 (and length/2), else `paired`."""
    shape = hlo.shape_of(spectrum)
    element = ir.ComplexType(hlo.element_type(spectrum)).element_type
    real = hlo.tensor(shape, element)
    i32 = hlo.tensor(shape, ir.IntegerType.get_signless(32))
    frequency = hlo.iota(i32, len(shape) - 1)
    once = hlo.compare("EQ", frequency, hlo.zeros(i32))
    if length % 2 == 0:
        top = hlo.compare("EQ", frequency, hlo.constant(shape[-1] - 1, i32))
        once = hlo.or_(once, top)
    factor = hlo.select(once, hlo.constant(single, real), hlo.constant(paired, real))
    return hlo.complex_(
        hlo.multiply(hlo.real(spectrum), factor),
        hlo.multiply(hlo.imag(spectrum), factor),
    )


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
    adjoint = "ADJOINT" if hlo.is_complex(hlo.element_type(phi)) else "TRANSPOSE"
    s = solve(factor, phi, left=True, transpose=adjoint, **common)
    s = solve(factor, s, left=False, transpose="NO_TRANSPOSE", **common)
    whole = hlo.add(s, _adjoint(s))
    triangle = hlo.subtract(_masked(whole, "GE"), _masked(s, "EQ"))
    return [hlo.conj(triangle) if lower else _last_swapped(triangle)]


RULES = {
    "fft": Linear(_fft),
    "triangular_solve": Vjp(_triangular_solve),
    "cholesky": Vjp(_cholesky),
}
