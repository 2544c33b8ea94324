"""How much work an op is, in operations that a processor counts."""

from math import prod

from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.hlo_windows import Convolution

#: What moving a byte through memory is worth, in operations: about what processors
#: of today do in that time.
FLOPS_PER_BYTE = 8.0


def size_bytes(value: ir.Value) -> int:
    """Bytes of a tensor; 0 for what is none."""
    return type_bytes(value.type)


def type_bytes(type_: ir.Type) -> int:
    """Bytes of a tensor of this type; 0 for another type."""
    if not isinstance(type_, ir.RankedTensorType):
        return 0
    element = type_.element_type
    parts = 2 if isinstance(element, ir.ComplexType) else 1
    width = element.element_type.width if parts == 2 else element.width
    return prod(type_.shape) * parts * max(1, width // 8)


def flops(op: ir.Operation) -> int:
    """Additions and multiplications; a body of control flow counts once."""
    if op.name == "stablehlo.dot_general":
        return 2 * _elements(op.results[0]) * _contracted(op)
    if op.name == "stablehlo.convolution":
        return 2 * _elements(op.results[0]) * _taps(op)
    if op.name in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
        return sum(flops(inner.operation) for r in op.regions for inner in r.blocks[0])
    return max((_elements(v) for v in (*op.operands, *op.results)), default=0)


def work(op: ir.Operation) -> float:
    """Operations and moved bytes in one number: time, up to a factor."""
    moved = sum(size_bytes(v) for v in (*op.operands, *op.results))
    return flops(op) + FLOPS_PER_BYTE * moved


def _elements(value: ir.Value) -> int:
    type_ = value.type
    return prod(type_.shape) if isinstance(type_, ir.RankedTensorType) else 0


def _contracted(op: ir.Operation) -> int:
    """The product of the dimensions that are summed over."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    shape = ir.RankedTensorType(op.operands[0].type).shape
    return prod(shape[d] for d in numbers.lhs_contracting_dimensions)


def _taps(op: ir.Operation) -> int:
    """Kernel elements that one output reads: all of them by output features."""
    _, output, _ = Convolution.of(op).dims.kernel
    features = ir.RankedTensorType(op.operands[1].type).shape[output]
    return _elements(op.operands[1]) // features if features else 0
