"""Constants and iotas on one member."""

from collections.abc import Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import constants
from pcp.passes.sharding.local.op import Local, Value


def constant(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """The member's part of the data."""
    value = at.op.results[0]
    if hlo.is_complex(hlo.element_type(value)):  # the bindings cannot read it
        return [_cut(at)]
    type_ = hlo.tensor(at.shape(0), hlo.element_type(value))
    attribute = at.op.attributes["value"]
    if attribute.is_splat:
        dense = ir.DenseElementsAttr.get_splat(type_, attribute.get_splat_value())
        return [hlo.op("constant", [], [type_], value=dense).result]
    array = constants.array(value)
    if array is None:  # 16 bits, of which numpy has no type
        return [_cut(at)]
    return [constants.make(np.ascontiguousarray(array[at.slices(0)]), type_)]


def _cut(at: Local) -> Value:
    """The whole constant, and in the program the slice of it that the member has."""
    whole = at.op.clone().operation.results[0]
    if hlo.shape_of(whole) == at.shape(0):
        return whole
    where = at.slices(0)
    return hlo.slice_(whole, [s.start for s in where], [s.stop for s in where])


def iota(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Counts from where the member's part begins."""
    counted = at.clone(operands).results[0]
    dim = ir.IntegerAttr(at.op.attributes["iota_dimension"]).value
    start = at.slices(0)[dim].start
    if start == 0:
        return [counted]
    return [hlo.add(counted, hlo.constant_like(counted, start))]
