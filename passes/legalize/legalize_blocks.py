"""Blocked factorization and substitution on `[batch, n, n]`, in StableHLO loops.

The size of the IR does not depend on n. Both algorithms walk blocks of columns
and leave most of the work to matrix products (Golub and Van Loan, "Matrix
Computations", 4th ed., 3.1.4 and 4.2.6). The blocks on the diagonal are inverted
all at once before a solve, as XLA does, so that a solve takes `block + n / block`
steps and not n.

Values of the triangle that is not read never reach a product: a mask of zeros
would let its NaN through.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.loops import counted
from pcp.passes.legalize.legalize_pads import pad_any

Value = ir.Value
BLOCK = 32  # of a solve; measured at n = 64 ... 512
PANEL = 16  # of a factorization: its panels are made column by column


def factor(a: Value) -> Value:
    """L with `L Lᴴ = a`, of which the lower triangle is read; zeros above.

    A matrix that is not positive definite gives NaN in all of its triangle.
    """
    n = hlo.shape_of(a)[-1]
    block = min(n, PANEL)
    whole = _on_diagonal(a, block)
    size = hlo.shape_of(whole)[-1]
    start = hlo.zeros(whole.type)

    def step(k: Value, done: Value) -> list[Value]:
        first = _times(k, block)
        panel = _columns(whole, first, block)
        if size > block:
            rows = _rows(done, first, block)
            panel = hlo.subtract(panel, _product(done, adjoint(rows)))
        return [_put(done, _factor_panel(panel, first), first, 2)]

    (done,) = counted(size // block, [start], step)
    return _or_nan(hlo.slice_(done, [0, 0, 0], hlo.shape_of(a)))


def _factor_panel(panel: Value, first: Value) -> Value:
    """The columns of L from `first` on, one after the other; zeros above them."""
    batch, n, block = hlo.shape_of(panel)
    types = hlo.tensor([batch, n, block], first.type.element_type)
    row, column = hlo.iota(types, 1), hlo.iota(types, 2)

    def step(j: Value, panel: Value) -> list[Value]:
        diagonal = hlo.add(first, j)
        pivot = _square_root(_window(panel, [1, 2], [diagonal, j], [batch, 1, 1]))
        scaled = hlo.divide(_columns(panel, j, 1), _stretch(pivot, [batch, n, 1]))
        rows = _rows(scaled, first, block)
        outer = hlo.multiply(
            _stretch(scaled, [batch, n, block]),
            _stretch(adjoint(rows), [batch, n, block]),
        )
        here = hlo.compare("EQ", column, _everywhere(j, types))
        later = hlo.compare("GT", column, _everywhere(j, types))
        below = hlo.compare("GT", row, _everywhere(diagonal, types))
        own = hlo.select(below, _stretch(scaled, [batch, n, block]), panel)
        on = hlo.compare("EQ", row, _everywhere(diagonal, types))
        own = hlo.select(on, _stretch(pivot, [batch, n, block]), own)
        rest = hlo.select(later, hlo.subtract(panel, outer), panel)
        return [hlo.select(here, own, rest)]

    (done,) = counted(block, [panel], step)
    shifted = hlo.add(column, _everywhere(first, types))
    return hlo.select(hlo.compare("GE", row, shifted), done, hlo.zeros(done.type))


def _square_root(pivot: Value) -> Value:
    """√ of the real part: the diagonal of a Hermitian matrix is real."""
    if not hlo.is_complex(hlo.element_type(pivot)):
        return hlo.sqrt(pivot)
    root = hlo.sqrt(hlo.real(pivot))
    return hlo.complex_(root, hlo.zeros(root.type))


def _or_nan(whole: Value) -> Value:
    """`whole`, or NaN in the lower triangles of those that have a bad pivot."""
    shape = hlo.shape_of(whole)
    element = hlo.element_type(whole)
    on = _triangle(whole, "EQ")
    values = hlo.real(whole) if hlo.is_complex(element) else whole
    real = hlo.element_type(values)
    pivots = hlo.select(on, values, hlo.constant_like(values, 1))
    good = hlo.compare("GT", pivots, hlo.zeros(pivots.type))
    yes = hlo.scalar(True, ir.IntegerType.get_signless(1))
    good = hlo.reduce(good, yes, [1, 2], hlo.and_)
    nan = hlo.constant(float("nan"), hlo.tensor(shape, real))
    nan = hlo.complex_(nan, nan) if hlo.is_complex(element) else nan
    nan = hlo.select(_triangle(whole, "GE"), nan, hlo.zeros(whole.type))
    return hlo.select(hlo.broadcast_in_dim(good, shape, [0]), whole, nan)


def substitute(lower: Value, b: Value, *, unit: bool) -> Value:
    """x with `lower x = b`: `[batch, n, n]` and `[batch, n, m]`.

    Only the lower triangle is read, without its diagonal if that is `unit`.
    """
    n = hlo.shape_of(lower)[-1]
    if n <= BLOCK:
        return _substitute_by_row(lower, b, unit=unit)
    a = _on_diagonal(lower, BLOCK)
    size = hlo.shape_of(a)[-1]
    batch, _, m = hlo.shape_of(b)
    inverses = _invert(_diagonal_blocks(a), unit=unit)
    strict = _below_blocks(a)
    rhs = _padded(b, [0, size - n, 0])

    def step(k: Value, x: Value) -> list[Value]:
        first = _times(k, BLOCK)
        known = _product(_rows(strict, first, BLOCK), x)
        rest = hlo.subtract(_rows(rhs, first, BLOCK), known)
        inverse = _window(inverses, [1], [k], [batch, 1, BLOCK, BLOCK])
        inverse = hlo.reshape(inverse, [batch, BLOCK, BLOCK])
        return [_put(x, _product(inverse, rest), first, 1)]

    (x,) = counted(size // BLOCK, [hlo.zeros(rhs.type)], step)
    return hlo.slice_(x, [0, 0, 0], [batch, n, m])


def _substitute_by_row(lower: Value, b: Value, *, unit: bool) -> Value:
    """Column by column of the matrix: x_j, then what it takes from the rows below."""
    batch, n, m = hlo.shape_of(b)
    types = hlo.tensor([batch, n, m], ir.IntegerType.get_signless(32))
    row = hlo.iota(types, 1)

    def step(j: Value, x: Value) -> list[Value]:
        solved = _rows(x, j, 1)
        if not unit:
            pivot = _window(lower, [1, 2], [j, j], [batch, 1, 1])
            solved = hlo.divide(solved, _stretch(pivot, [batch, 1, m]))
        column = _stretch(_columns(lower, j, 1), [batch, n, m])
        spread = _stretch(solved, [batch, n, m])
        place = _everywhere(j, types)
        rest = hlo.subtract(x, hlo.multiply(column, spread))
        below = hlo.select(hlo.compare("GT", row, place), rest, x)
        return [hlo.select(hlo.compare("EQ", row, place), spread, below)]

    (x,) = counted(n, [b], step)
    return x


def _invert(blocks: Value, *, unit: bool) -> Value:
    """The inverses of `[batch, count, n, n]` lower triangles."""
    batch, count, n, _ = hlo.shape_of(blocks)
    flat = hlo.reshape(blocks, [batch * count, n, n])
    one = hlo.select(
        _triangle(flat, "EQ"), hlo.constant_like(flat, 1), hlo.zeros(flat.type)
    )
    inverse = _substitute_by_row(flat, one, unit=unit)
    # 0 / 0 above the diagonal of a singular block is still nothing.
    inverse = hlo.select(_triangle(flat, "GE"), inverse, hlo.zeros(flat.type))
    return hlo.reshape(inverse, [batch, count, n, n])


# --- blocks ---


def _on_diagonal(a: Value, block: int) -> Value:
    """The lower triangle of `a`, grown to whole blocks with ones on the diagonal."""
    _, n, _ = hlo.shape_of(a)
    more = -n % block
    a = hlo.select(_triangle(a, "GE"), a, hlo.zeros(a.type))
    if not more:
        return a
    a = _padded(a, [0, more, more])
    place = hlo.like(a, element=ir.IntegerType.get_signless(32))
    outside = hlo.compare("GE", hlo.iota(place, 1), hlo.constant(n, place))
    new = hlo.and_(outside, _triangle(a, "EQ"))
    return hlo.select(new, hlo.constant_like(a, 1), a)


def _padded(x: Value, high: Sequence[int]) -> Value:
    """`x` with zeros behind it along each dim."""
    none = [0] * len(high)
    zero = hlo.scalar(0, hlo.element_type(x))
    return pad_any(x, zero, none, high, none)


def _diagonal_blocks(a: Value) -> Value:
    """`[batch, count, block, block]` of `[batch, n, n]`."""
    return hlo.reduce_sum(_blocks_where(a, "EQ"), [3])


def _below_blocks(a: Value) -> Value:
    """`a` with zeros in and above the blocks on the diagonal."""
    return hlo.reshape(_blocks_where(a, "GT"), hlo.shape_of(a))


def _blocks_where(a: Value, direction: str) -> Value:
    """The blocks whose row is EQ, GT, ... their column; zeros in the others."""
    batch, n, _ = hlo.shape_of(a)
    count = n // BLOCK
    grid = hlo.reshape(a, [batch, count, BLOCK, count, BLOCK])
    place = hlo.like(grid, element=ir.IntegerType.get_signless(32))
    kept = hlo.compare(direction, hlo.iota(place, 1), hlo.iota(place, 3))
    return hlo.select(kept, grid, hlo.zeros(grid.type))


def _triangle(x: Value, direction: str) -> Value:
    """Where the row is GE, GT, EQ, ... the column."""
    place = hlo.like(x, element=ir.IntegerType.get_signless(32))
    return hlo.compare(direction, hlo.iota(place, 1), hlo.iota(place, 2))


def _times(k: Value, block: int) -> Value:
    return hlo.multiply(k, hlo.constant_like(k, block))


def _everywhere(scalar: Value, type_: ir.Type) -> Value:
    return hlo.splat(scalar, hlo.shape_of(type_))


def _stretch(x: Value, shape: Sequence[int]) -> Value:
    """Repeat along the dims of length one."""
    return hlo.broadcast_in_dim(x, shape, range(len(shape)))


def _window(
    x: Value, dims: Sequence[int], starts: Sequence[Value], sizes: Sequence[int]
) -> Value:
    """A slice that begins at `starts` along `dims`, and at 0 along the others."""
    zero = hlo.constant_like(starts[0], 0)
    at = dict(zip(dims, starts, strict=True))
    where = [at.get(d, zero) for d in range(len(hlo.shape_of(x)))]
    return hlo.dynamic_slice(x, where, sizes)


def _rows(x: Value, first: Value, count: int) -> Value:
    batch, _, n = hlo.shape_of(x)
    return _window(x, [1], [first], [batch, count, n])


def _columns(x: Value, first: Value, count: int) -> Value:
    batch, n, _ = hlo.shape_of(x)
    return _window(x, [2], [first], [batch, n, count])


def _put(x: Value, part: Value, first: Value, dim: int) -> Value:
    zero = hlo.constant_like(first, 0)
    where = [first if d == dim else zero for d in range(3)]
    return hlo.dynamic_update_slice(x, part, where)


def _product(a: Value, b: Value) -> Value:
    """The batched matrix product."""
    return hlo.dot_general(a, b, batch=([0], [0]), contract=([2], [1]))


def transposed(x: Value) -> Value:
    """The last two of three dims exchanged."""
    return hlo.transpose(x, [0, 2, 1])


def adjoint(x: Value) -> Value:
    """The conjugate transpose; of real numbers, the transpose."""
    flipped = transposed(x)
    return hlo.conj(flipped) if hlo.is_complex(hlo.element_type(x)) else flipped
