"""Maxima that only keep an exponential in range: their derivative cancels.

A softmax or log-sum-exp subtracts the row's maximum m and is, as mathematics, the
same for any m. A program that says so has `pcp.stop_gradient`, if its frontend kept
it; one that does not pays for a derivative that adds up to zero. Here it is proved
from the ops: give every row its own δ, replace m by m + δ, and follow each value that
changes:

    m                       + δ
    d = x − m               − δ
    e = exp d               · exp(−δ)
    s = Σ e over the row    · exp(−δ)
    log s                   − δ
    e / s, d − log s, m + log s, e · (1/s)     unchanged
    what is stopped                            unchanged, to a derivative

If every path ends at an unchanged value, nothing downstream depends on m, and m
counts as inactive.
"""

from dataclasses import dataclass, replace
from functools import reduce
from math import inf

from pcp.autodiff.core.bodies import combiner
from pcp.autodiff.core.values import splat_of
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value

#: Softmax and its kin need under twenty ops; a longer walk is not one of them.
LIMIT = 32


@dataclass(frozen=True)
class Shift:
    """How a value changes: `+ power·δ`, or `· exp(power·δ)` if `scales`.

    `rows[i]` is the value's dimension along which the i-th row index runs; only
    row indices of size over 1 are counted.
    """

    power: int
    scales: bool
    rows: tuple[int, ...]


def cancels(op: ir.Operation) -> bool:
    """Whether `op` is a maximum or minimum on which nothing depends."""
    if op.name != "stablehlo.reduce" or len(op.results) != 1:
        return False
    if combiner(op) not in ("maximum", "minimum"):
        return False
    shape = hlo.shape_of(op.results[0])
    rows = tuple(d for d, n in enumerate(shape) if n > 1)
    return _all_end(op.results[0], Shift(1, False, rows))


def _all_end(start: Value, shift: Shift) -> bool:
    """Follow the changes in program order until each has ended, or one cannot."""
    known: dict[Value, Shift] = {start: shift}
    block = start.owner.operation.block
    pending = _users(start)
    for _ in range(LIMIT):
        if not pending:
            return True
        if any(op.block != block for op in pending):
            return False
        op = reduce(lambda a, b: a if a.is_before_in_block(b) else b, pending)
        pending = [other for other in pending if other != op]
        follow = _FOLLOW.get(op.name)
        after = follow(op, known) if follow else None
        if after is None:
            return False
        if after.power:
            known[op.results[0]] = after
            pending += _users(op.results[0])
    return False


def _users(value: Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


# --- one function an op: what its result does, None if it cannot be said ---


def _exponential(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    shift = known[op.operands[0]]
    return None if shift.scales else replace(shift, scales=True)


def _log(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    shift = known[op.operands[0]]
    return replace(shift, scales=False) if shift.scales else None


def _negate(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    shift = known[op.operands[0]]
    return shift if shift.scales else replace(shift, power=-shift.power)


def _combined(scales: bool, sign: int):
    """Sum and difference of offsets, product and quotient of factors."""

    def follow(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
        sides = [known.get(x) for x in op.operands]
        present = [s for s in sides if s is not None]
        if any(s.scales != scales or s.rows != present[0].rows for s in present):
            return None
        powers = [0 if s is None else s.power for s in sides]
        return replace(present[0], power=powers[0] + sign * powers[1])

    return follow


def _broadcast(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    shift = known[op.operands[0]]
    dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    return replace(shift, rows=tuple(dims[d] for d in shift.rows))


def _reshape(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    """Only dimensions of size 1 may come and go."""
    shift = known[op.operands[0]]
    before, after = (hlo.shape_of(v) for v in (op.operands[0], op.results[0]))
    old = [d for d, n in enumerate(before) if n != 1]
    new = [d for d, n in enumerate(after) if n != 1]
    if [before[d] for d in old] != [after[d] for d in new]:
        return None
    place = dict(zip(old, new, strict=True))
    return replace(shift, rows=tuple(place[d] for d in shift.rows))


def _transpose(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    shift = known[op.operands[0]]
    order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
    return replace(shift, rows=tuple(order.index(d) for d in shift.rows))


def _sum(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    """Σ from zero on keeps a factor that is the same for all its terms."""
    shift = known.get(op.operands[0])
    if shift is None or not shift.scales or combiner(op) != "add":
        return None
    gone = set(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    if len(op.results) != 1 or gone & set(shift.rows) or splat_of(op.operands[1]) != 0:
        return None
    rank = len(hlo.shape_of(op.operands[0]))
    place = {d: i for i, d in enumerate(d for d in range(rank) if d not in gone)}
    return replace(shift, rows=tuple(place[d] for d in shift.rows))


def _select(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    """`select(is_finite(m), m, c)`: elsewhere the whole row is not finite."""
    test = op.operands[0].owner
    guarded = op.operands[1]
    if isinstance(test, ir.Block) or test.name != "stablehlo.is_finite":
        return None
    if test.operands[0] != guarded or op.operands[2] in known:
        return None
    return known.get(guarded)


def _abs(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    shift = known[op.operands[0]]
    return shift if shift.scales else None


def _sign(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    shift = known[op.operands[0]]
    return replace(shift, power=0) if shift.scales else None


def _identity_bound(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    """`maximum(v, −∞)` and `minimum(v, ∞)` are v."""
    bound = -inf if op.name == "stablehlo.maximum" else inf
    for value, other in (op.operands, reversed(list(op.operands))):
        if value in known and splat_of(other) == bound:
            return known[value]
    return None


def _stopped(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    """A derivative does not see what changes behind a stop."""
    return replace(known[op.operands[0]], power=0)


def _convert(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    to_float = hlo.is_float(hlo.element_type(op.results[0]))
    return known[op.operands[0]] if to_float else None


def _is_finite(op: ir.Operation, known: dict[Value, Shift]) -> Shift | None:
    """Finite stays finite; only a select on the same value may use it."""
    for use in op.results[0].uses:
        user = use.owner.operation
        if user.name != "stablehlo.select" or user.operands[1] != op.operands[0]:
            return None
    return replace(known[op.operands[0]], power=0)


_FOLLOW = {
    "stablehlo.add": _combined(False, +1),
    "stablehlo.subtract": _combined(False, -1),
    "stablehlo.multiply": _combined(True, +1),
    "stablehlo.divide": _combined(True, -1),
    "stablehlo.negate": _negate,
    "stablehlo.exponential": _exponential,
    "stablehlo.log": _log,
    "stablehlo.reduce": _sum,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.transpose": _transpose,
    "stablehlo.is_finite": _is_finite,
    "stablehlo.select": _select,
    "stablehlo.convert": _convert,
    "stablehlo.abs": _abs,
    "stablehlo.sign": _sign,
    "stablehlo.maximum": _identity_bound,
    "stablehlo.minimum": _identity_bound,
    "pcp.stop_gradient": _stopped,
}
