"""Reductions on one member."""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.passes.core import constants
from pcp.passes.sharding.local.op import Local, Value


def reduce(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Sums over members: the first starts from what the whole does, others from zero.

    Only a reduction of one tensor is ever a partial sum.
    """
    summed = at.rule.reductions(at.assignment).get("sum", ())
    if not any(at.place[axis] for axis in summed):
        return list(at.clone(operands).results)
    value, start = operands
    if constants.splat(start) != 0:
        start = hlo.zeros(start.type)
    return list(at.clone([value, start]).results)
