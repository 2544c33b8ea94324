"""Constants and iotas on one member."""

from collections.abc import Sequence

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes import constants
from pcp.passes.sharding.local.op import Local, Value


def constant(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """The member's part of the data."""
    value = at.op.results[0]
    type_ = hlo.tensor(at.shape(0), hlo.element_type(value))
    attribute = at.op.attributes["value"]
    if attribute.is_splat:
        dense = ir.DenseElementsAttr.get_splat(type_, attribute.get_splat_value())
        return [hlo.op("constant", [], [type_], value=dense).result]
    array = constants.array(value)
    if array is None:  # a complex or 16-bit constant: cut it in the program
        whole = at.op.clone()
        where = at.slices(0)
        return [
            hlo.slice_(
                whole.results[0], [s.start for s in where], [s.stop for s in where]
            )
        ]
    return [constants.make(np.ascontiguousarray(array[at.slices(0)]), type_)]


def iota(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Counts from where the member's part begins."""
    counted = at.clone(operands).results[0]
    dim = ir.IntegerAttr(at.op.attributes["iota_dimension"]).value
    start = at.slices(0)[dim].start
    if start == 0:
        return [counted]
    return [hlo.add(counted, hlo.constant_like(counted, start))]
