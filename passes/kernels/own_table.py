"""Our own kernels, and what of a program each takes the place of.

| entry | pattern | reference | tolerance |
|---|---|---|---|
| `product` | `dot_general` of f32 rows with the rows of a matrix of f32, or of one \
of bf16 or f16 that is converted to f32 | the ops | depth · 2⁻²⁴ of the sum of \
magnitudes |
| `transposed` | `dot_general` of f32 over the first dims of both operands, as the \
gradient of weights is | the ops | depth · 2⁻²⁴ of the sum of magnitudes |
| `grouped` | the sums over groups of an exact product of i8 in panels, times a scale \
of each row and group and one of each column and group; panels of i8, or of 4 bits in \
its halves | the ops | groups · 2⁻²³ of the sum of magnitudes |

`benchmarks/decode.py` and `step.py` measure them in programs; docs/evidence.md has
the gain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.kernels import objects
from pcp.passes.kernels.contractions import Contraction, contraction_of, is_f32
from pcp.passes.kernels.own_dispatch import KernelCall

MOST_ROWS = 256
"""Of the left operand: with more, the tiles of `pcp-schedule-kernels` are as good."""

LEAST_WEIGHTS = 1 << 14
"""Elements: with fewer a kernel is worth less than what IREE makes one with them."""

MOST_DEPTH = 1 << 15
"""Terms of a sum: the kernel adds one after the other, and `pcp-split-reductions` makes
chunks of more."""

NARROW = frozenset({"x86-64-v3"})
"""Sets whose few registers IREE's tiles of transposed products do not suit."""

LEAST_PART = 1 << 15
"""Multiplications of a workgroup, at least."""


@dataclass(frozen=True)
class Place:
    """A place for a kernel: the call, its operands, and its result's own shape."""

    call: KernelCall
    operands: tuple[ir.Value, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class KernelEntry:
    """A row: the source that holds it, the op that may be its root, how to see it."""

    source: str
    root: str
    find: Callable[[ir.Operation], Place | None]
    sets: frozenset[str] | None = None
    """Of instructions, where it is only faster with some."""

    def serves(self, instructions: str) -> bool:
        """Whether a program for this set may call it."""
        some = self.sets is None or instructions in self.sets
        return some and objects.best(self.source, instructions) is not None


_WEIGHTS = ("f32", "bf16", "f16")


def _product(op: ir.Operation) -> Place | None:
    shape = contraction_of(op)
    if shape is None or shape.batch or shape.form != "NT":
        return None
    left, right = op.operands
    if shape.columns == 1:  # a matrix with a vector
        left, right = right, left
        shape = Contraction("NT", 0, 1, shape.depth, shape.rows)
    if not 1 <= shape.rows <= MOST_ROWS or shape.depth > MOST_DEPTH:
        return None
    if shape.columns * shape.depth < LEAST_WEIGHTS:
        return None
    if {_type(left), _type(op.result)} != {"f32"} or "algorithm" in op.attributes:
        return None
    right = _stored(right)
    if (type_ := _type(right)) not in _WEIGHTS:
        return None
    width = _width(shape)
    sizes = prod(shape.left), prod(shape.right), prod(shape.result)
    call = KernelCall(
        "product",
        f"pcp_product_{type_}",
        ("f32", type_, "f32"),
        sizes,
        (width, shape.rows, shape.columns, shape.depth),
        -(-shape.columns // width),
    )
    return Place(call, (left, right), (shape.rows, shape.columns))


def _width(shape: Contraction) -> int:
    """Columns of a workgroup: whole panels and whole blocks of rows of any width."""
    step = 96
    least = -(-LEAST_PART // max(1, shape.rows * shape.depth))
    wanted = max(least, min(shape.columns // 16, 512))
    return -(-wanted // step) * step


def _stored(value: ir.Value) -> ir.Value:
    """What is converted to f32 and reshaped, as it is stored."""
    inner, converted = value, False
    while not isinstance(inner.owner, ir.Block):
        op = inner.owner.operation
        if op.name == "stablehlo.convert" and not converted:
            if _type(op.operands[0]) not in ("bf16", "f16"):
                break
            converted = True
        elif op.name != "stablehlo.reshape":
            break
        inner = op.operands[0]
    return inner if converted else value


def _type(value: ir.Value) -> str:
    return str(hlo.element_type(value))


# --- sums over the first dims of both operands

LEAST_DEPTH = 128
"""Terms of such a sum: of fewer the operands are not worth putting together."""

LEAST_RESULT = 1 << 12
"""Elements of its result: what is put together is read that often."""

LEAST_SIDE = 16
"""Rows and columns of its result: a tile of them is computed at once."""

MOST_PART = 132, 256
"""Most rows and columns of a part: for more rows the kernel has no memory."""

PARTS, LEAST_PART_RESULT = 8, 6144
"""Workgroups that a product has, if a part of its result is not smaller than this."""


def _transposed(op: ir.Operation) -> Place | None:
    shape = contraction_of(op)
    if shape is None or shape.batch or shape.form != "TN":
        return None
    if shape.depth < LEAST_DEPTH or shape.rows * shape.columns < LEAST_RESULT:
        return None
    if min(shape.rows, shape.columns) < LEAST_SIDE or not is_f32(op):
        return None
    height, width = part_of(shape.rows, shape.columns)
    call = KernelCall(
        "product",
        "pcp_transposed_f32",
        ("f32",) * 3,
        (prod(shape.left), prod(shape.right), prod(shape.result)),
        (height, width, shape.rows, shape.columns, shape.depth),
        -(-shape.rows // height) * -(-shape.columns // width),
    )
    return Place(call, tuple(op.operands), (shape.rows, shape.columns))


def part_of(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a part: near to square, whole tiles of any registers."""
    height, width = min(rows, MOST_PART[0]), min(columns, MOST_PART[1])
    while height * width >= 2 * LEAST_PART_RESULT:
        if -(-rows // height) * -(-columns // width) >= PARTS:
            break
        if height >= width:
            height = _even(height, 2, 12)
        else:
            width = _even(width, 2, 32)
    return _even(rows, -(-rows // height), 12), width


def _even(extent: int, parts: int, step: int) -> int:
    """An equal part, rounded up to whole steps."""
    return -(-extent // parts // step) * step


# --- integers with a scale for each group, as `frontends/decoders/stored.py` has them


def _grouped(op: ir.Operation) -> Place | None:
    scaled = _sum_of_first(op)
    exact, scales = _operands(scaled, "multiply", 2)
    (dot,) = _operands(exact, "convert", 1)
    columns, rows = _operands(scales, "multiply", 2)
    (ws,) = _operands(columns, "broadcast_in_dim", 1, broadcast_dimensions=[2, 0, 3])
    (xs,) = _operands(rows, "broadcast_in_dim", 1, broadcast_dimensions=[1, 0])
    x, w = _operands(dot, "dot_general", 2)
    if x is None or w is None or ws is None or xs is None or dot is None:
        return None
    if not _contracts_quads(_made(dot, "dot_general")):
        return None
    kinds = [str(hlo.element_type(v)) for v in (x, w, dot, xs, ws, op.result)]
    if kinds != ["i8", "i8", "i32", "f32", "f32", "f32"]:
        return None
    count, groups, *_ = hlo.shape_of(x)
    panels, _, *block = hlo.shape_of(w)
    scales = [[count, groups], [panels, groups, 16]]  # one that is repeated is none
    if block != [8, 16, 4] or [[*hlo.shape_of(v)] for v in (xs, ws)] != scales:
        return None
    packed = _halves(w)
    function = "pcp_grouped_int8" if packed is None else "pcp_grouped_int4"
    w = packed or w
    tensors = (x, xs, w, ws)
    sizes = (*map(hlo.size, tensors), count * panels * 16)
    least = -(-LEAST_PART // max(1, count * groups * 512))
    width = max(least, min(panels // 8, 32), 1)
    call = KernelCall(
        "grouped",
        function,
        ("i8", "f32", "i8", "f32", "f32"),
        sizes,
        (width, count, panels, groups),
        -(-panels // width),
    )
    return Place(call, tensors, tuple(hlo.shape_of(op.result)))


def _made(value: ir.Value | None, name: str) -> ir.Operation | None:
    """The op that made it, where that is `stablehlo.name`."""
    if value is None or isinstance(value.owner, ir.Block):
        return None
    op = value.owner.operation
    return op if op.name == f"stablehlo.{name}" else None


def _operands(
    value: ir.Value | None, name: str, count: int, **dimensions: list[int]
) -> list[ir.Value] | list[None]:
    """What it was made of by `stablehlo.name`, or as many Nones."""
    op = _made(value, name)
    if op is None or len(op.operands) != count:
        return [None] * count
    for key, wanted in dimensions.items():
        if list(ir.DenseI64ArrayAttr(op.attributes[key])) != wanted:
            return [None] * count
    return list(op.operands)


def _sum_of_first(op: ir.Operation) -> ir.Value | None:
    """What is summed over its first dimension from zero on, or None."""
    if len(op.operands) != 2:
        return None
    dimensions = list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    inner = [o.operation.name for o in op.regions[0].blocks[0].operations]
    adds = inner == ["stablehlo.add", "stablehlo.return"]
    zero = _splat(op.operands[1]) == 0
    return op.operands[0] if dimensions == [0] and adds and zero else None


def _contracts_quads(dot: ir.Operation | None) -> bool:
    if dot is None:
        return False
    numbers = stablehlo.DotDimensionNumbers(dot.attributes["dot_dimension_numbers"])
    return [
        list(numbers.lhs_batching_dimensions),
        list(numbers.rhs_batching_dimensions),
        list(numbers.lhs_contracting_dimensions),
        list(numbers.rhs_contracting_dimensions),
    ] == [[1], [1], [2, 3], [2, 4]]


def _halves(w: ir.Value) -> ir.Value | None:
    """The bytes whose halves, less 8, are w; None where it is made otherwise."""
    both, eight = _operands(w, "subtract", 2)
    low, high = _operands(both, "concatenate", 2)
    first, mask = _operands(low, "and", 2)
    second, shift = _operands(high, "shift_right_logical", 2)
    constants = [_splat(v) for v in (eight, mask, shift)]
    joined = _made(both, "concatenate")
    if first is None or first != second or constants != [8, 15, 4] or joined is None:
        return None
    return first if ir.IntegerAttr(joined.attributes["dimension"]).value == 2 else None


def _splat(value: ir.Value | None) -> float | int | None:
    """The one number that a constant is made of."""
    op = _made(value, "constant")
    if op is None:
        if (inner := _operands(value, "broadcast_in_dim", 1)[0]) is not None:
            return _splat(inner)
        return None
    attribute = ir.DenseElementsAttr(op.attributes["value"])
    if not attribute.is_splat:
        return None
    number = attribute.get_splat_value()
    return number.value


ENTRIES: tuple[KernelEntry, ...] = (
    KernelEntry("product", "stablehlo.dot_general", _product),
    KernelEntry("product", "stablehlo.dot_general", _transposed, NARROW),
    KernelEntry("grouped", "stablehlo.reduce", _grouped),
)
