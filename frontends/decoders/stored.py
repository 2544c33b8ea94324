"""How a program holds the weights of its products: f32, bf16, f16, int8 or int4.

Narrow floats are converted to f32 where they are used, which is exact. Integers have a
scale for each group of 32 numbers along what is summed over (Dettmers et al. 2022,
arXiv:2208.07339, cut it by rows and columns). What they are multiplied with is made
8 bits wide in the same groups, by the program itself, so that the inner sums are exact:

    y[m, n] = sum over g of xs[m, g] * ws[n, g] * sum over k of xq[m, g, k] * w[n, g, k]

They lie in panels of 16 rows, as `serving/quantized.py` makes them and the kernels of
`passes/kernels/native/grouped.c` read them: [panel, group, 8 quads, 16, 4]; of int4 the
quads j and j + 4 share a byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, gather

STORED = ("f32", "bf16", "f16", "int8", "int4")
INTEGERS = ("int8", "int4")
GROUP, ROWS, QUADS, QUAD = 32, 16, 8, 4
MOST = 127.0
"""Of a number of 8 bits that something is multiplied with."""


@dataclass(frozen=True)
class Quantized:
    """A weight of integers in a program: panels, scales, and the shape that it has."""

    panels: ir.Value
    scales: ir.Value
    shape: tuple[int, ...]


def types(kind: str, shape: Sequence[int], summed: int) -> dict[str, ir.Type]:
    """The arguments that hold a weight of `shape`, by what their names end in.

    Its last `summed` dimensions are summed over.
    """
    if kind not in INTEGERS:
        narrow = {"bf16": ir.BF16Type, "f16": ir.F16Type}.get(kind, ir.F32Type)
        return {"": hlo.tensor(shape, narrow.get())}
    rows, depth = prod(shape[:-summed]), prod(shape[-summed:])
    panels, groups = -(-rows // ROWS), -(-depth // GROUP)
    quads = QUADS if kind == "int8" else QUADS // 2
    i8 = ir.IntegerType.get_signless(8)
    return {
        f".{kind}": hlo.tensor([panels, groups, quads, ROWS, QUAD], i8),
        f".{kind}.scales": hlo.tensor([panels, groups, ROWS], ir.F32Type.get()),
    }


def product(x: ir.Value, w: Quantized, summed: int) -> ir.Value:
    """x · wᵀ over the last `summed` dimensions of both."""
    shape = hlo.shape_of(x)
    outer, free = shape[: len(shape) - summed], w.shape[: len(w.shape) - summed]
    count, columns = prod(outer), prod(free)
    panels, groups, _ = hlo.shape_of(w.scales)
    xq, xs = _quantized(hlo.reshape(x, [count, prod(shape[len(outer) :])]), groups)
    i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
    over = ([2, 3], [2, 4])
    exact = hlo.dot_general(
        xq, _unpacked(w.panels), batch=([1], [1]), contract=over, element=i32
    )
    each = [groups, count, panels, ROWS]
    scales = hlo.multiply(
        hlo.broadcast_in_dim(w.scales, each, [2, 0, 3]),
        hlo.broadcast_in_dim(xs, each, [1, 0]),
    )
    found = hlo.reduce_sum(hlo.multiply(hlo.convert(exact, f32), scales), [0])
    found = hlo.reshape(found, [count, panels * ROWS])
    if columns < panels * ROWS:
        found = hlo.slice_(found, [0, 0], [count, columns])
    return hlo.reshape(found, [*outer, *free])


def rows(w: Quantized, tokens: ir.Value) -> ir.Value:
    """The rows of a matrix by number, [tokens, width] of f32."""
    (count,), width = hlo.shape_of(tokens), w.shape[-1]
    _, groups, _ = hlo.shape_of(w.scales)
    panel, row = _split(tokens)
    where = hlo.concatenate(
        [hlo.reshape(panel, [count, 1]), hlo.reshape(row, [count, 1])], 1
    )
    quads = hlo.shape_of(w.panels)[2]
    numbers = gather(
        w.panels,
        where,
        Windows((1, 2, 3), (0, 3), (), (), (0, 3), 1),
        [1, groups, quads, 1, QUAD],
    )
    scales = gather(
        w.scales, where, Windows((1,), (0, 2), (), (), (0, 2), 1), [1, groups, 1]
    )
    f32 = ir.F32Type.get()
    values = hlo.multiply(
        hlo.convert(_unpacked(numbers), f32),
        hlo.broadcast_in_dim(scales, [count, groups, QUADS, QUAD], [0, 1]),
    )
    flat = hlo.reshape(values, [count, groups * GROUP])
    return flat if groups * GROUP == width else hlo.slice_(flat, [0, 0], [count, width])


def _split(tokens: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Numbers of rows as panels and rows of them."""
    shift = hlo.constant_like(tokens, ROWS.bit_length() - 1)
    panel = hlo.shift_right_logical(tokens, shift)
    return panel, hlo.and_(tokens, hlo.constant_like(tokens, ROWS - 1))


def _quantized(x: ir.Value, groups: int) -> tuple[ir.Value, ir.Value]:
    """Rows as integers [rows, groups, 8, 4], the largest of a group 127; their scales.

    What is not finite makes scales that are not, so the result is not either.
    """
    count, depth = hlo.shape_of(x)
    f32, i8 = ir.F32Type.get(), ir.IntegerType.get_signless(8)
    zero = hlo.scalar(0, f32)
    if depth < groups * GROUP:
        x = hlo.pad(x, zero, [0, 0], [0, groups * GROUP - depth])
    x = hlo.reshape(x, [count, groups, QUADS, QUAD])
    top = hlo.reduce(hlo.abs(x), zero, [2, 3], hlo.maximum)
    scales = hlo.multiply(top, hlo.constant_like(top, 1 / MOST))
    some = hlo.compare("GT", top, hlo.constant_like(top, 0))
    most = hlo.divide(hlo.constant_like(top, MOST), top)
    by = hlo.select(some, most, hlo.constant_like(top, 0))
    whole = hlo.multiply(x, hlo.broadcast_in_dim(by, hlo.shape_of(x), [0, 1]))
    return hlo.convert(hlo.round_nearest_even(whole), i8), scales


def _unpacked(panels: ir.Value) -> ir.Value:
    """Numbers of 4 bits, 8 higher than they are, two in a byte; others as they are."""
    if hlo.shape_of(panels)[2] == QUADS:
        return panels
    low = hlo.and_(panels, hlo.constant_like(panels, 15))
    high = hlo.shift_right_logical(panels, hlo.constant_like(panels, 4))
    both = hlo.concatenate([low, high], 2)
    return hlo.subtract(both, hlo.constant_like(both, 8))
