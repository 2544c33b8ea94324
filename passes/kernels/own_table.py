"""Our own kernels, and what of a program each takes the place of.

| entry | pattern | reference | tolerance |
|---|---|---|---|
| `product` | `dot_general` of f32 rows with the rows of a matrix of f32, or of one of \
bf16 or f16 that is converted to f32 | the ops | depth · 2⁻²⁴ of the sum of magnitudes |

`benchmarks/kernels.py --own` measures them beside what IREE makes of the same ops;
docs/performance.md has the figures.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.kernels.contractions import Contraction, contraction_of
from pcp.passes.kernels.own_dispatch import KernelCall

MOST_ROWS = 256
"""Of the left operand: with more, the tiles of `pcp-schedule-kernels` are as good."""

LEAST_WEIGHTS = 1 << 14
"""Elements: with fewer a kernel is worth less than what IREE makes one with them."""

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


_WEIGHTS = ("f32", "bf16", "f16")


def _product(op: ir.Operation) -> Place | None:
    shape = contraction_of(op)
    if shape is None or shape.batch or shape.form != "NT":
        return None
    left, right = op.operands
    if shape.columns == 1:  # a matrix with a vector
        left, right = right, left
        shape = Contraction("NT", 0, 1, shape.depth, shape.rows)
    if not 1 <= shape.rows <= MOST_ROWS or shape.columns * shape.depth < LEAST_WEIGHTS:
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


ENTRIES: tuple[KernelEntry, ...] = (
    KernelEntry("product", "stablehlo.dot_general", _product),
)
