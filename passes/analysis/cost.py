"""What ops cost: floating-point operations and bytes moved, counted from the IR.

The count is of the program as written, before any compiler fuses or folds:

* contractions and convolutions: two per multiply-add, exact (padding counts);
* elementwise ops: one per element of the result, transcendental or not;
* reductions: the body once per element that is combined;
* movement (reshape, transpose, gather, slice, constants ...): none;
* `while`: condition and body times the trips, where these are static, else once;
  `case` and `if`: the dearest branch.

Bytes are the sizes of an op's operands and results; ops that only rename
(`RENAMING`) move none. What reads or updates a part of a tensor moves that part:
slices, gathers, and with updates in place `dynamic_update_slice` and `scatter`. XLA's
HloCostAnalysis counts these so, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.analysis import loops
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.walk import CONTROL_FLOW, block_of

Value = ir.Value

#: Ops that give a buffer another name, shape or nothing at all.
RENAMING = frozenset(
    {
        "pcp.stop_gradient",
        "stablehlo.bitcast_convert",
        "stablehlo.get_tuple_element",
        "stablehlo.optimization_barrier",
        "stablehlo.reshape",
        "stablehlo.return",
        "stablehlo.tuple",
        "func.return",
    }
)
#: Elementwise in form, but without arithmetic.
_FREE = frozenset({"stablehlo.bitcast_convert", "stablehlo.convert"})
#: Read as much of their first operand as they give.
_PARTIAL = frozenset({"stablehlo.dynamic_slice", "stablehlo.gather", "stablehlo.slice"})

#: What moving a byte through memory is worth, in operations: about what processors
#: of today do in that time.
FLOPS_PER_BYTE = 8.0


@dataclass(frozen=True)
class Cost:
    """Floating-point operations and bytes moved."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


def size_bytes(value: Value | ir.Type) -> int:
    """Bytes of a tensor; booleans and narrower integers take one byte each.

    Tokens and other values without a static shape take none.
    """
    type_ = value if isinstance(value, ir.Type) else value.type
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return 0
    return prod(type_.shape) * _element_bytes(type_.element_type)


def _element_bytes(element: ir.Type) -> int:
    """Bytes of one element as it lies in memory."""
    if isinstance(element, ir.ComplexType):
        return 2 * _element_bytes(element.element_type)
    if isinstance(element, ir.IntegerType | ir.FloatType):
        return max(1, element.width // 8)
    return 8  # index


def update_of(op: ir.Operation, index: int) -> Value | None:
    """What is written into an operand, if the op changes a part of that."""
    if op.name == "stablehlo.dynamic_update_slice" and index == 0:
        return op.operands[1]
    count = len(op.operands) // 2
    if op.name == "stablehlo.scatter" and index < count:
        return op.operands[count + 1 + index]
    return None


def read_bytes(op: ir.Operation, index: int) -> int:
    """Bytes that an op reads of an operand; of what it changes, the part."""
    if (update := update_of(op, index)) is not None:
        return size_bytes(update) if op.name == "stablehlo.scatter" else 0
    if index == 0 and op.name in _PARTIAL:
        return size_bytes(op.results[0])
    return size_bytes(op.operands[index])


def written_bytes(op: ir.Operation, index: int) -> int:
    """Bytes that an op writes of a result; an update is one in place."""
    update = update_of(op, index)
    return size_bytes(op.results[index] if update is None else update)


def bytes_moved(op: ir.Operation) -> int:
    """Bytes of the operands read and the results written; regions are not entered."""
    if op.name in RENAMING:
        return 0
    read = sum(read_bytes(op, i) for i in range(len(op.operands)))
    return read + sum(written_bytes(op, i) for i in range(len(op.results)))


def flops(op: ir.Operation) -> int:
    """Floating-point (and integer) operations of one op, its regions included."""
    if op.name in ELEMENTWISE:
        return 0 if op.name in _FREE else _elements(op.results[0])
    if op.name.startswith("chlo."):
        return sum(map(_elements, op.results))
    count = _COUNTS.get(op.name)
    return count(op) if count else 0


def cost(op: ir.Operation) -> Cost:
    """An op's cost; a loop's or branch's is that of what it runs."""
    if op.name not in CONTROL_FLOW:
        return Cost(flops(op), bytes_moved(op))
    inner = [total(block_of(op, i).operations) for i in range(len(op.regions))]
    if op.name != "stablehlo.while":
        return max(inner, key=lambda c: (c.flops, c.bytes), default=Cost())
    count, once = loops.trips(op), inner[0] + inner[1]
    return Cost(count * once.flops, count * once.bytes)


def total(ops: Iterable[ir.Operation | ir.OpView]) -> Cost:
    """The sum over a block's ops, for example `total(functions.body(f).operations)`."""
    return sum((cost(op.operation) for op in ops), Cost())


def work(op: ir.Operation) -> float:
    """Operations and moved bytes in one number: time, up to a factor."""
    found = cost(op)
    return found.flops + FLOPS_PER_BYTE * found.bytes


def _elements(value: Value) -> int:
    return prod(hlo.shape_of(value))


# --- the ops that are not one operation per element ---


def _dot_general(op: ir.Operation) -> int:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    shape = hlo.shape_of(op.operands[0])
    inner = prod(shape[d] for d in numbers.lhs_contracting_dimensions)
    return 2 * inner * _elements(op.results[0])


def _dot(op: ir.Operation) -> int:
    return 2 * hlo.shape_of(op.operands[0])[-1] * _elements(op.results[0])


def _convolution(op: ir.Operation) -> int:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kernel = hlo.shape_of(op.operands[1])
    outputs = max(1, kernel[numbers.kernel_output_feature_dimension])
    return 2 * prod(kernel) // outputs * _elements(op.results[0])


def _body(op: ir.Operation, region: int = 0) -> int:
    """Operations of a body of scalars."""
    return sum(flops(o.operation) for o in op.regions[region].blocks[0].operations)


def _reduce(op: ir.Operation) -> int:
    return _body(op) * _elements(op.operands[0])


def _windows(op: ir.Operation) -> int:
    window = ir.DenseI64ArrayAttr(op.attributes["window_dimensions"])
    return _body(op) * prod(window) * _elements(op.results[0])


def _select_and_scatter(op: ir.Operation) -> int:
    given = hlo.attribute(op, "window_dimensions")
    window = prod(ir.DenseI64ArrayAttr(given)) if given is not None else 1
    return (_body(op) * window + _body(op, 1)) * _elements(op.operands[1])


def _scatter(op: ir.Operation) -> int:
    return _body(op) * _elements(op.operands[-1])


def _map(op: ir.Operation) -> int:
    return _body(op) * _elements(op.results[0])


def _sort(op: ir.Operation) -> int:
    n = hlo.shape_of(op.operands[0])[ir.IntegerAttr(op.attributes["dimension"]).value]
    return _body(op) * _elements(op.operands[0]) * max(1, n - 1).bit_length()


def _fft(op: ir.Operation) -> int:
    """5 n log2 n for each transform of n points, as is customary."""
    lengths = prod(ir.DenseI64ArrayAttr(op.attributes["fft_length"]))
    elements = max(_elements(op.operands[0]), _elements(op.results[0]))
    return 5 * elements * max(1, lengths - 1).bit_length()


def _cholesky(op: ir.Operation) -> int:
    return _elements(op.operands[0]) * hlo.shape_of(op.operands[0])[-1] // 3


def _triangular_solve(op: ir.Operation) -> int:
    return _elements(op.operands[1]) * hlo.shape_of(op.operands[0])[-1]


def _regions(op: ir.Operation) -> int:
    return cost(op).flops


_COUNTS = {
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dot": _dot,
    "stablehlo.convolution": _convolution,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _windows,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.scatter": _scatter,
    "stablehlo.map": _map,
    "stablehlo.sort": _sort,
    "stablehlo.fft": _fft,
    "stablehlo.cholesky": _cholesky,
    "stablehlo.triangular_solve": _triangular_solve,
    "stablehlo.rng_bit_generator": lambda op: _elements(op.results[1]),
    "stablehlo.while": _regions,
    "stablehlo.case": _regions,
    "stablehlo.if": _regions,
}
