"""What a group's collective gives each member: the lockstep executor's exchanges.

An exchange takes the requests of a group's members in their order, each an op with
its operands, and gives each member's results.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pcp.dialect.base import integer, integers, text
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError, StateMismatch

Array = np.ndarray

#: What a member asks for while it runs: the op and its operands' values.
Request = tuple[ir.Operation, list[Any]]
Exchange = Callable[[Sequence[Request]], list[list[Array]]]

PARITY = "pcp.parity"

_log = logging.getLogger("pcp.compiler")

_REDUCE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "mean": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


def _reduced(requests: Sequence[Request]) -> Array:
    """Over the group, in its order; what travels narrow is added up in f32."""
    op = requests[0][0]
    kind = text(op, "kind")
    operands = [_rounded(op, operand) for _, (operand, *_rest) in requests]
    if kind == "trimmed_mean":
        return _rounded(op, _trimmed_mean(operands)).astype(requests[0][1][0].dtype)
    total = operands[0]
    for operand in operands[1:]:
        total = _REDUCE[kind](total, operand)
    if kind == "mean":
        total = (total / len(requests)).astype(total.dtype)
    return _rounded(op, total).astype(requests[0][1][0].dtype)


def _trimmed_mean(operands: Sequence[Array]) -> Array:
    """Of each number the mean of the middle ones; `pcp.all_reduce` says how many."""
    members = len(operands)
    away = max(1, members // 4) if members > 2 else 0
    return np.mean(np.sort(np.stack(operands), 0)[away : members - away], 0)


def _rounded(op: ir.Operation, array: Array) -> Array:
    """An array as it is after it travelled in the op's `wire` type.

    Of a narrow type it comes as float32, in which it is reduced.
    """
    if "wire" not in op.attributes:
        return array
    wire = ir.TypeAttr(op.attributes["wire"]).value
    if wire == ir.RankedTensorType(op.operands[0].type).element_type:
        return array
    name = str(wire)
    if name not in _WIRES:
        known = ", ".join(_WIRES)
        raise PassError(f"{location_string(op.location)}: wire {name} (known: {known})")
    with np.errstate(over="ignore"):
        return _WIRES[name](array)


def _bfloat16(array: Array) -> Array:
    """Rounded to bfloat16's eight bits, to even at ties; as float32."""
    single = np.array(array, np.float32)
    bits = single.view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(single), single, nearest.view(np.float32))


_WIRES: dict[str, Callable[[Array], Array]] = {
    "bf16": _bfloat16,
    "f16": lambda array: array.astype(np.float16).astype(np.float32),
    "f32": lambda array: array.astype(np.float32),
}


def _all_reduce(requests: Sequence[Request]) -> list[list[Array]]:
    total = _reduced(requests)
    return [[total] for _ in requests]


def _cut(array: Array, op: ir.Operation, dim: int, members: int) -> list[Array]:
    """Parts along `dim`: of the op's sizes, or equal."""
    sizes = integers(op, "sizes") if "sizes" in op.attributes else []
    if not sizes:
        return np.split(array, members, dim)
    return np.split(array, np.cumsum(sizes)[:-1], dim)


def _reduce_scatter(requests: Sequence[Request]) -> list[list[Array]]:
    op = requests[0][0]
    total = _reduced(requests)
    return [[part] for part in _cut(total, op, integer(op, "dim"), len(requests))]


def _all_gather(requests: Sequence[Request]) -> list[list[Array]]:
    op = requests[0][0]
    parts = [_rounded(op, operands[0]) for _, operands in requests]
    whole = np.concatenate(parts, integer(op, "dim"))
    return [[whole.astype(requests[0][1][0].dtype)] for _ in requests]


def _all_to_all(requests: Sequence[Request]) -> list[list[Array]]:
    op = requests[0][0]
    split, concat = integer(op, "split"), integer(op, "concat")
    pieces = [np.split(x[0], len(requests), split) for _, x in requests]
    return [
        [np.concatenate([piece[i] for piece in pieces], concat)]
        for i in range(len(requests))
    ]


def _broadcast(requests: Sequence[Request]) -> list[list[Array]]:
    root = integer(requests[0][0], "root")
    return [[requests[root][1][0]] for _ in requests]


def _param_sync(requests: Sequence[Request]) -> list[list[Array]]:
    op = requests[0][0]
    source = integer(op, "source") if "source" in op.attributes else 0
    return [list(requests[source][1]) for _ in requests]


def _parity(requests: Sequence[Request]) -> list[list[Any]]:
    """What each member goes on with; `StateMismatch` for the action "trap".

    Tensor by tensor the values that most members hold are right, the first member's
    among equally many.
    """
    op = requests[0][0]
    rows = [spread(operands) for _, operands in requests]
    columns = [_agreed(op, column) for column in zip(*rows, strict=True)]
    answers = [list(row) for row in zip(*columns, strict=True)]
    tupled = isinstance(requests[0][1][0], tuple)
    return [[tuple(row)] if tupled else row for row in answers]


def _agreed(op: ir.Operation, held: Sequence[Array]) -> list[Array]:
    """What each member has of one tensor behind a parity."""
    bits = [array.tobytes() for array in held]
    votes = Counter(bits)
    right = max(range(len(bits)), key=lambda i: (votes[bits[i]], -i))
    wrong = [i for i, own in enumerate(bits) if own != bits[right]]
    if not wrong:
        return list(held)
    named, action = ", ".join(map(str, wrong)), text(op, "action")
    message = (
        f"{location_string(op.location)}: {op.name}: member {named} of its group holds "
        f"other bits than member {right}"
    )
    if action == "trap":
        raise StateMismatch(message)
    _log.warning("%s (%s)", message, action)
    return list(held) if action == "report" else [held[right]] * len(held)


def digest_words(arrays: Sequence[Array], algo: str) -> Array:
    """The first 128 bits of a hash of the arrays' bytes in order, as two int64."""
    summary = hashlib.new(algo)
    for array in arrays:
        summary.update(np.ascontiguousarray(array).tobytes())
    return np.frombuffer(summary.digest()[:16], "<i8").astype(np.int64)


def spread(operands: Sequence[Any]) -> list[Array]:
    """The tensors that an op takes; those of several types come as one tuple."""
    first = operands[0]
    return list(first) if isinstance(first, tuple) else list(operands)


def _permute(requests: Sequence[Request]) -> list[list[Array]]:
    op = requests[0][0]
    answers = [[np.zeros_like(x[0])] for _, x in requests]
    for pair in ir.ArrayAttr(op.attributes["pairs"]):
        source, target = (ir.IntegerAttr(i).value for i in ir.ArrayAttr(pair))
        answers[target] = [requests[source][1][0]]
    return answers


def _sync(requests: Sequence[Request]) -> list[list[Array]]:
    return [[] for _ in requests]


COLLECTIVES: dict[str, Exchange] = {
    "pcp.all_gather": _all_gather,
    "pcp.all_reduce": _all_reduce,
    "pcp.all_to_all": _all_to_all,
    "pcp.broadcast": _broadcast,
    "pcp.param_sync": _param_sync,
    PARITY: _parity,
    "pcp.permute": _permute,
    "pcp.reduce_scatter": _reduce_scatter,
    "pcp.sync": _sync,
}
