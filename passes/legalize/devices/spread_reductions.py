"""`pcp-spread-reductions`: reductions that IREE gives few threads of a GPU, cut up.

What IREE 3.13 does on NVIDIA's GPUs, measured on an H100: a sum of 64-bit integers, or
one whose terms are made of such, is one thread's (2,048 terms: 0.6 ms); a reduction of
rows whose length no power of two divides has a thread a row, as has what is done with
its result (256 rows of 50,257: 27 ms); one of columns has a thread a column (2,048 rows
of 256: 55 us where 11 are needed).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.constants import splat
from pcp.passes.core.elementwise import body_kind
from pcp.passes.core.rewriting import before, defining, ints, operations, replace

WHOLE = 256
"""Rows are cut where a multiple of it ends."""

LEAST_ROW = 1024
"""Elements: shorter rows have threads enough, with one thread each."""

LEAST_COLUMN, MOST_COLUMNS = 256, 16384
"""Elements of a column, and columns, from and up to which columns are cut."""

PIECES = 64
"""Of a column, at most."""

NEAR = 8
"""Ops in front of a sum of everything that are looked at for 64-bit integers."""

Combine = Callable[[ir.Value, ir.Value], ir.Value]

_KINDS: dict[str, tuple[Combine, float]] = {
    "add": (hlo.add, 0.0),
    "maximum": (hlo.maximum, -inf),
    "minimum": (hlo.minimum, inf),
}
"""By the op of a body: how two values become one, and the value that changes none."""


@dataclass(frozen=True)
class SpreadReductions(Pass):
    """Cut long rows and columns; count in 32 bits.

    Assumes what pcp-legalize leaves. A count of `true` is made in i32 and converted:
    the same number. Terms made of 64-bit integers are made before they are summed up. A
    row's rest behind a multiple of 256 is reduced by itself; columns
    are reduced in pieces. Sums of floats add in another order. Before and after:

        %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add
            across dimensions = [1] : (tensor<256x50257xf32>, tensor<f32>)

        %0 = stablehlo.slice %x [0:256, 0:50176]
        %1 = stablehlo.slice %x [0:256, 50176:50257]
        %2 = stablehlo.reduce(%0 init: %zero) ...
        %3 = stablehlo.reduce(%1 init: %zero) ...
        %4 = stablehlo.add %2, %3
        %5 = stablehlo.optimization_barrier %4
    """

    name = "pcp-spread-reductions"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        for op in operations(module):
            if op.name == "stablehlo.reduce" and len(op.operands) == 2:
                with before(op):
                    if (value := _spread(op)) is not None:
                        replace(op, [value])


def _spread(op: ir.Operation) -> ir.Value | None:
    kind = body_kind(op.regions[0].blocks[0])
    if kind not in _KINDS:
        return None
    x, init = op.operands
    element, neutral = hlo.element_type(x), splat(init)
    combine, wanted = _KINDS[kind]
    dims = ints(op, "dimensions")
    if kind == "add" and neutral == 0 and (bits := _counted(x)) is not None:
        terms = hlo.convert(bits, ir.IntegerType.get_signless(32))
        if _is_whole(x, dims) and _wide(bits):
            terms = hlo.optimization_barrier(terms)
        return hlo.convert(hlo.reduce_sum(terms, dims), element)
    if not isinstance(element, ir.F32Type) or neutral != wanted:
        return None
    if _is_whole(x, dims):
        if not _wide(x):
            return None
        return hlo.reduce(hlo.optimization_barrier(x), init, dims, combine)
    return _rows(x, init, dims, combine) or _columns(x, init, dims, combine)


def _is_whole(x: ir.Value, dims: list[int]) -> bool:
    return hlo.size(x) > 1 and len(dims) == len(hlo.shape_of(x))


def _wide(x: ir.Value) -> bool:
    """Whether ops close in front of it, that IREE may fuse, work on 64-bit integers."""
    pending, seen = [x], 0
    while pending and seen < NEAR:
        op, seen = defining(pending.pop()), seen + 1
        if op is None or op.name == "stablehlo.optimization_barrier":
            continue
        if any(str(hlo.element_type(v)) == "i64" for v in op.operands):
            return True
        pending += op.operands
    return False


def _counted(x: ir.Value) -> ir.Value | None:
    """The i1 of which x is a conversion to i64, where i32 counts all of them."""
    op = defining(x)
    if op is None or op.name != "stablehlo.convert" or hlo.size(x) >= 1 << 31:
        return None
    (source,) = op.operands
    wide = str(hlo.element_type(x)) == "i64"
    return source if wide and str(hlo.element_type(source)) == "i1" else None


def _rows(
    x: ir.Value, init: ir.Value, dims: list[int], combine: Combine
) -> ir.Value | None:
    """The last dimension alone, in a whole part and a rest."""
    shape = list(hlo.shape_of(x))
    last = len(shape) - 1
    if dims != [last] or shape[last] < LEAST_ROW or shape[last] % 64 == 0:
        return None
    cut = shape[last] // WHOLE * WHOLE
    start, end = [0] * len(shape), shape
    whole = hlo.slice_(x, start, [*shape[:-1], cut])
    rest = hlo.slice_(x, [*start[:-1], cut], end)
    parts = [hlo.reduce(part, init, dims, combine) for part in (whole, rest)]
    # Else one thread does for the whole row what is done with the result.
    return hlo.optimization_barrier(combine(*parts))


def _columns(
    x: ir.Value, init: ir.Value, dims: list[int], combine: Combine
) -> ir.Value | None:
    """The first dimensions, in pieces of a length that divides them.

    Dimensions of 1 in front of them do not count.
    """
    whole, gone = list(hlo.shape_of(x)), set(dims)
    ones = next((i for i, n in enumerate(whole) if n > 1), 0)
    dims, shape = [d - ones for d in dims if d >= ones], whole[ones:]
    count = len(dims)
    if dims != list(range(count)) or count in (0, len(shape)):
        return None
    length, columns = prod(shape[:count]), prod(shape[count:])
    if length < LEAST_COLUMN or not 1 < columns <= MOST_COLUMNS:
        return None
    pieces = max(n for n in range(1, PIECES + 1) if length % n == 0)
    if pieces < 8:
        return None
    cut = hlo.reshape(x, [pieces, length // pieces, *shape[count:]])
    summed = hlo.reduce(hlo.reduce(cut, init, [1], combine), init, [0], combine)
    return hlo.reshape(summed, [n for i, n in enumerate(whole) if i not in gone])
