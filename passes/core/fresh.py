"""Constant tensors that get a buffer of their own.

IREE keeps one buffer for equal constants, and a function that returns two of them
returns one buffer twice, barriers or not. A later update in place of the one would
change the other. So the tensors of a new state are computed from something that is
known only at run time, each from something else, although they are constant.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


def filled(type_: ir.Type, value: float, source: Value) -> Value:
    """`value` at every position of `type_`.

    `source` is of integers, a scalar or of the same shape; tensors that must not
    share a buffer need different ones.
    """
    zero = hlo.convert(_never(source), hlo.element_type(type_))
    if hlo.shape_of(zero) != hlo.shape_of(type_):
        zero = hlo.splat(zero, hlo.shape_of(type_))
    return hlo.add(zero, hlo.constant_like(zero, value)) if value else zero


def _never(x: Value) -> Value:
    """False everywhere: a number shifted right with zeros is not negative."""
    shifted = hlo.shift_right_logical(x, hlo.constant_like(x, 1))
    return hlo.compare("LT", shifted, hlo.zeros(x.type), "SIGNED")


def numbered(seed: Value, number: int) -> Value:
    """A source of its own for each `number`, of 32 bits, which every target has."""
    low = hlo.convert(seed, ir.IntegerType.get_signless(32))
    return hlo.xor(low, hlo.constant_like(low, number))


def bits(x: Value) -> Value:
    """A float tensor's bits as integers of its width: a source that comes with it."""
    element = hlo.element_type(x)
    integer = ir.IntegerType.get_signless(ir.FloatType(element).width)
    return hlo.bitcast_convert(x, hlo.like(x, element=integer))
