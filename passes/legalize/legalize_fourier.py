"""fft of the lengths, ranks and precisions that IREE has no kernel for.

It transforms one dim, of a power of two, in f32. Several dims are done one after
the other; another length or f64 is a product with the matrix of the transform,
whose entries are looked up among the n points `j k mod n` of the circle.
"""

from collections.abc import Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.hlo_indexing import Windows, gather
from pcp.passes.core.constants import make
from pcp.passes.core.rewriting import ints, refuse

Value = ir.Value
LONGEST = 4096  # of a matrix: 64 MiB in f32, made at run time


def fft(op: ir.Operation) -> Sequence[Value] | None:
    """The transforms dim by dim, or None where IREE has the kernel."""
    x = op.operands[0]
    kind = stablehlo.FftTypeAttr(op.attributes["fft_type"]).value
    lengths = ints(op, "fft_length")
    if not lengths:
        return [x]
    if len(lengths) == 1 and _has_kernel(x, lengths[0]):
        return None
    for n in lengths:
        if not _has_kernel(x, n) and n > LONGEST:
            refuse(op, f"a length of {n} is neither a power of two nor short")
    rank = len(hlo.shape_of(x))
    outer = list(zip(range(rank - len(lengths), rank - 1), lengths, strict=False))
    if kind == "IRFFT":
        for dim, n in outer:
            x = _along(x, dim, n, "IFFT")
        return [_last(x, lengths[-1], "IRFFT")]
    x = _last(x, lengths[-1], kind)
    for dim, n in outer:
        x = _along(x, dim, n, "IFFT" if kind == "IFFT" else "FFT")
    return [x]


def _part(x: Value) -> ir.Type:
    element = hlo.element_type(x)
    return ir.ComplexType(element).element_type if hlo.is_complex(element) else element


def _has_kernel(x: Value, n: int) -> bool:
    return isinstance(_part(x), ir.F32Type) and n > 1 and n & (n - 1) == 0


def _along(x: Value, dim: int, n: int, kind: str) -> Value:
    """The transform of a dim that is not the last: it changes places with it."""
    order = list(range(len(hlo.shape_of(x))))
    order[dim], order[-1] = order[-1], order[dim]
    return hlo.transpose(_last(hlo.transpose(x, order), n, kind), order)


def _last(x: Value, n: int, kind: str) -> Value:
    """The transform of the last dim, of length `n` (of its real side)."""
    return _kernel(x, n, kind) if _has_kernel(x, n) else _product(x, n, kind)


def as_product(op: ir.Operation) -> Value:
    """A transform of one dimension as a product, also where IREE has a kernel."""
    (n,) = ints(op, "fft_length")
    if n > LONGEST:
        refuse(
            op, f"a length of {n} is more than {LONGEST}, and this target has no fft"
        )
    kind = stablehlo.FftTypeAttr(op.attributes["fft_type"]).value
    return _product(op.operands[0], n, kind)


def _product(x: Value, n: int, kind: str) -> Value:
    """`_last` by the matrix of the transform."""
    if kind == "RFFT":
        cosine, sine = _circle(x, n, n, n // 2 + 1)
        return hlo.complex_(_times(x, cosine), hlo.negate(_times(x, sine)))
    re, im = hlo.real(x), hlo.imag(x)
    if kind == "IRFFT":
        cosine, sine = _circle(re, n, hlo.shape_of(x)[-1], n)
        re, im = _paired(re, n), _paired(im, n)
        return _scaled(hlo.subtract(_times(re, cosine), _times(im, sine)), n)
    cosine, sine = _circle(re, n, n, n)
    if kind == "IFFT":
        real = hlo.subtract(_times(re, cosine), _times(im, sine))
        imag = hlo.add(_times(im, cosine), _times(re, sine))
        return hlo.complex_(_scaled(real, n), _scaled(imag, n))
    real = hlo.add(_times(re, cosine), _times(im, sine))
    return hlo.complex_(real, hlo.subtract(_times(im, cosine), _times(re, sine)))


def _kernel(x: Value, n: int, kind: str) -> Value:
    lengths = {"RFFT": n // 2 + 1, "IRFFT": n}
    shape = [*hlo.shape_of(x)[:-1], lengths.get(kind, n)]
    element = _part(x) if kind == "IRFFT" else ir.ComplexType.get(_part(x))
    return hlo.op(
        "fft",
        [x],
        [hlo.tensor(shape, element)],
        fft_type=stablehlo.FftTypeAttr.get(kind),
        fft_length=hlo.i64s([n]),
    ).result


def _circle(x: Value, n: int, rows: int, columns: int) -> tuple[Value, Value]:
    """cos and sin of `2π j k / n`, `[rows, columns]`, in x's type."""
    place = hlo.tensor([rows, columns], ir.IntegerType.get_signless(32))
    turns = hlo.multiply(hlo.iota(place, 0), hlo.iota(place, 1))
    turns = hlo.remainder(turns, hlo.constant(n, place))
    indices = hlo.reshape(turns, [rows, columns, 1])
    angles = 2 * np.pi * np.arange(n) / n
    once = hlo.tensor([n], hlo.element_type(x))
    cosine, sine = (
        gather(make(f(angles), once), indices, _ENTRY, [1]) for f in (np.cos, np.sin)
    )
    return cosine, sine


_ENTRY = Windows(
    offset=(),
    collapsed=(0,),
    operand_batching=(),
    indices_batching=(),
    index_map=(0,),
    index_vector=2,
)


def _times(x: Value, matrix: Value) -> Value:
    return hlo.dot_general(x, matrix, contract=([len(hlo.shape_of(x)) - 1], [0]))


def _paired(x: Value, n: int) -> Value:
    """Frequencies that stand for their mirror image too, doubled."""
    place = hlo.like(x, element=ir.IntegerType.get_signless(32))
    k = hlo.iota(place, len(hlo.shape_of(x)) - 1)
    single = hlo.compare("EQ", k, hlo.zeros(place))
    if n % 2 == 0:
        middle = hlo.compare("EQ", k, hlo.constant(n // 2, place))
        single = hlo.or_(single, middle)
    return hlo.select(single, x, hlo.add(x, x))


def _scaled(x: Value, n: int) -> Value:
    return hlo.multiply(x, hlo.constant_like(x, 1 / n))
