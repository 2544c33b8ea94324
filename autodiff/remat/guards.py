"""Values that wait: what makes them again can neither run early nor be merged.

A compiler is free to run an op as soon as its operands are there, to postpone what
nothing has read yet, and to merge two ops that compute the same. All three undo
recomputation. An optimization barrier stops the merging, but IREE ends a submission
there and holds what passes through to the end of the call. So the value to wait is
chosen by a predicate that reads the values to wait for, and is never true: with
integer bits b1, b2, ... of one element of each,

    select((b1 | b2 | ... | 1) == 0, 0, value)

which is `value`, bit for bit, whatever the bits are, NaN included.
"""

from collections.abc import Sequence
from functools import reduce

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


def waiting(values: Sequence[Value], waits: Sequence[Value]) -> list[Value]:
    """`values` again, available only once all of `waits` are computed.

    Ranked static tensors of at least one element; `waits` must not be empty.
    """
    bits = reduce(_or, [_bits(w) for w in waits])
    never = hlo.compare("EQ", _or(bits, hlo.constant_like(bits, 1)), hlo.zeros(_I32()))
    return [_choose(never, v) for v in values]


def _choose(never: Value, value: Value) -> Value:
    shape = hlo.shape_of(value)
    # IREE reads a scalar predicate on the host; one of rank 1 stays on the device.
    spread = hlo.broadcast_in_dim(never, shape, [0]) if shape else None
    pred = hlo.reshape(never, []) if spread is None else spread
    return hlo.select(pred, hlo.zeros(value.type), value)


def _I32() -> ir.Type:
    return hlo.tensor([1], ir.IntegerType.get_signless(32))


def _or(lhs: Value, rhs: Value) -> Value:
    return hlo.op("or", [lhs, rhs], [lhs.type]).result


def _bits(value: Value) -> Value:
    """One element as a tensor of one i32, without arithmetic on the value."""
    rank = len(hlo.shape_of(value))
    one = hlo.reshape(hlo.slice_(value, [0] * rank, [1] * rank), [1])
    if hlo.is_complex(hlo.element_type(one)):
        one = hlo.real(one)
    element = hlo.element_type(one)
    if hlo.is_float(element):
        integer = ir.IntegerType.get_signless(ir.FloatType(element).width)
        one = hlo.bitcast_convert(one, hlo.tensor([1], integer))
    return hlo.convert(one, ir.IntegerType.get_signless(32))
