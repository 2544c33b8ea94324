"""The value of an op on constants, computed with numpy.

Only ops whose result is the same on every device are in the table: arithmetic
that IEEE 754 rounds correctly, integers, comparisons and movement. exp, log,
tanh and their kin are not: libraries differ in the last place.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import constants
from pcp.passes.core.rewriting import integer, ints

Arrays = Sequence[np.ndarray]


def evaluate(value: ir.Value, limit: int, depth: int = 64) -> np.ndarray | None:
    """The elements of `value` when they follow from constants, or None.

    Nothing of more than `limit` elements is made on the way, and no chain
    longer than `depth` is followed.
    """
    if (known := constants.array(value, limit)) is not None:
        return known
    if depth == 0 or isinstance(value.owner, ir.Block):
        return None
    op = value.owner.operation
    if op.name not in FOLDS or hlo.size(value) > limit:
        return None
    inputs = []
    for operand in op.operands:
        if (known := evaluate(operand, limit, depth - 1)) is None:
            return None
        inputs.append(known)
    return apply(op, inputs)


def apply(op: ir.Operation, inputs: Arrays) -> np.ndarray | None:
    """The op's result on these elements, or None where it is not defined exactly."""
    dtype = constants.dtype_of(hlo.element_type(op.result))
    if dtype is None or (rule := FOLDS.get(op.name)) is None:
        return None
    with np.errstate(all="ignore"):
        result = rule(op, inputs)
    return None if result is None else np.asarray(result, dtype)


def _elementwise(function: Callable[..., np.ndarray]) -> Callable:
    def rule(op: ir.Operation, inputs: Arrays) -> np.ndarray:
        return function(*inputs)

    return rule


def _divide(op: ir.Operation, inputs: Arrays) -> np.ndarray | None:
    """Integers truncate towards zero; by zero it is not defined alike everywhere."""
    left, right = inputs
    if np.issubdtype(left.dtype, np.floating):
        return left / right
    if not right.all():
        return None
    if np.issubdtype(left.dtype, np.signedinteger):
        if ((left == np.iinfo(left.dtype).min) & (right == -1)).any():
            return None
        away = (left % right != 0) & ((left < 0) != (right < 0))
        return left // right + away
    return left // right


def _convert(op: ir.Operation, inputs: Arrays) -> np.ndarray | None:
    """Floats to integers only where they fit; everything else as IEEE rounds."""
    (x,) = inputs
    dtype = constants.dtype_of(hlo.element_type(op.result))
    if dtype is None:
        return None
    if dtype == np.bool_:
        return x != 0
    if np.issubdtype(x.dtype, np.floating) and np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        inside = (x > float(info.min) - 1) & (x < float(info.max))
        if not inside.all():
            return None
    return x.astype(dtype)


_COMPARE = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def _compare(op: ir.Operation, inputs: Arrays) -> np.ndarray | None:
    if "TOTALORDER" in str(hlo.attribute(op, "compare_type")):
        return None
    return _COMPARE[direction(op)](*inputs)


def direction(op: ir.Operation) -> str:
    """`EQ`, `NE`, `GE`, `GT`, `LE` or `LT` of a compare."""
    return str(op.attributes["comparison_direction"]).split()[-1].rstrip(">")


def _select(op: ir.Operation, inputs: Arrays) -> np.ndarray:
    return np.where(*inputs)


def _clamp(op: ir.Operation, inputs: Arrays) -> np.ndarray | None:
    low, x, high = inputs
    if np.issubdtype(x.dtype, np.floating):
        return None
    return np.minimum(np.maximum(x, low), high)


def _extremum(function: Callable[..., np.ndarray]) -> Callable:
    """max or min; of floats only when no zero is among them, whose sign may differ."""

    def rule(op: ir.Operation, inputs: Arrays) -> np.ndarray | None:
        left, right = inputs
        floats = np.issubdtype(left.dtype, np.floating)
        if floats and ((left == 0) & (right == 0)).any():
            return None
        return function(left, right)

    return rule


def _iota(op: ir.Operation, inputs: Arrays) -> np.ndarray:
    shape = hlo.shape_of(op.result)
    dimension = integer(op, "iota_dimension")
    counts = np.arange(shape[dimension])
    column = [-1 if d == dimension else 1 for d in range(len(shape))]
    return np.broadcast_to(counts.reshape(column), shape)


def _broadcast(op: ir.Operation, inputs: Arrays) -> np.ndarray:
    (x,) = inputs
    shape = hlo.shape_of(op.result)
    dims = ints(op, "broadcast_dimensions")
    order = np.argsort(dims)
    column = [1] * len(shape)
    for i, d in enumerate(dims):
        column[d] = x.shape[i]
    return np.broadcast_to(x.transpose(order).reshape(column), shape)


def _reshape(op: ir.Operation, inputs: Arrays) -> np.ndarray:
    return inputs[0].reshape(hlo.shape_of(op.result))


def _transpose(op: ir.Operation, inputs: Arrays) -> np.ndarray:
    return inputs[0].transpose(ints(op, "permutation"))


def _slice(op: ir.Operation, inputs: Arrays) -> np.ndarray:
    names = ("start_indices", "limit_indices", "strides")
    windows = zip(*(ints(op, name) for name in names), strict=True)
    return inputs[0][tuple(slice(*window) for window in windows)]


def _concatenate(op: ir.Operation, inputs: Arrays) -> np.ndarray:
    return np.concatenate(inputs, integer(op, "dimension"))


def _reverse(op: ir.Operation, inputs: Arrays) -> np.ndarray:
    return np.flip(inputs[0], tuple(ints(op, "dimensions")))


FOLDS: dict[str, Callable[[ir.Operation, Arrays], np.ndarray | None]] = {
    "pcp.stop_gradient": _elementwise(lambda x: x),
    "stablehlo.abs": _elementwise(np.abs),
    "stablehlo.add": _elementwise(np.add),
    "stablehlo.and": _elementwise(np.bitwise_and),
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.ceil": _elementwise(np.ceil),
    "stablehlo.clamp": _clamp,
    "stablehlo.compare": _compare,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.convert": _convert,
    "stablehlo.divide": _divide,
    "stablehlo.floor": _elementwise(np.floor),
    "stablehlo.iota": _iota,
    "stablehlo.maximum": _extremum(np.maximum),
    "stablehlo.minimum": _extremum(np.minimum),
    "stablehlo.multiply": _elementwise(np.multiply),
    "stablehlo.negate": _elementwise(np.negative),
    "stablehlo.not": _elementwise(np.invert),
    "stablehlo.or": _elementwise(np.bitwise_or),
    "stablehlo.reshape": _reshape,
    "stablehlo.reverse": _reverse,
    "stablehlo.select": _select,
    "stablehlo.slice": _slice,
    "stablehlo.sqrt": _elementwise(np.sqrt),
    "stablehlo.subtract": _elementwise(np.subtract),
    "stablehlo.transpose": _transpose,
    "stablehlo.xor": _elementwise(np.bitwise_xor),
}
