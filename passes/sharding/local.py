"""One op as it runs on one member: the same op on parts, adjusted where sizes show.

Most ops are cloned onto the local operands with local result types. A few say sizes
or positions in attributes, or count from the start of the whole tensor; those have
an entry in `ADJUST`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows
from pcp.mesh import Mesh
from pcp.passes import constants
from pcp.passes.rewriting import ints, refuse
from pcp.passes.sharding.factors import Assignment, Rule
from pcp.passes.sharding.layout import SHARDING, Layout

Value = ir.Value


@dataclass(frozen=True)
class Local:
    """An op on one member: how its work is cut, and which part is the member's."""

    op: ir.Operation
    rule: Rule
    assignment: Assignment
    layouts: Sequence[Layout]
    mesh: Mesh
    place: dict[str, int]

    def part(self, factor: int) -> tuple[int, int]:
        """(offset, size) of the member's part of a factor."""
        axes = self.assignment.get(factor, ())
        return self.mesh.part(self.rule.sizes[factor], axes, self.place)

    def shape(self, tensor: int) -> tuple[int, ...]:
        """The member's shape of an operand, or behind those of a result."""
        values = (*self.op.operands, *self.op.results)
        whole = tuple(ir.RankedTensorType(values[tensor].type).shape)
        return self.layouts[tensor].local_shape(whole, self.mesh, self.place)

    def slices(self, tensor: int) -> tuple[slice, ...]:
        """Where in the whole tensor the member's part lies."""
        values = (*self.op.operands, *self.op.results)
        whole = tuple(ir.RankedTensorType(values[tensor].type).shape)
        return self.layouts[tensor].slices(whole, self.mesh, self.place)

    @property
    def is_whole(self) -> bool:
        """Whether nothing about the op is cut."""
        return not any(self.assignment.values())

    def clone(self, operands: Sequence[Value]) -> ir.Operation:
        """The op on these operands, with the member's result types."""
        copy = self.op.clone().operation
        if SHARDING in copy.attributes:
            del copy.attributes[SHARDING]
        for i, operand in enumerate(operands):
            copy.operands[i] = operand
        if not self.is_whole:
            for i, result in enumerate(copy.results):
                shape = self.shape(len(self.op.operands) + i)
                result.set_type(hlo.tensor(shape, hlo.element_type(result)))
        return copy


Adjust = Callable[[Local, Sequence[Value]], Sequence[Value]]


def localize(at: Local, operands: Sequence[Value]) -> list[Value]:
    """The op's results on the member, at the current insertion point."""
    adjust = ADJUST.get(at.op.name)
    if adjust is None or at.is_whole:
        return list(at.clone(operands).results)
    return list(adjust(at, operands))


# --- sources ---


def _constant(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
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


def _iota(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Counts from where the member's part begins."""
    counted = at.clone(operands).results[0]
    dim = ir.IntegerAttr(at.op.attributes["iota_dimension"]).value
    start = at.slices(0)[dim].start
    if start == 0:
        return [counted]
    return [hlo.add(counted, hlo.constant_like(counted, start))]


# --- sizes in attributes ---


def _slice(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Dimensions that are cut are taken whole."""
    copy = at.clone(operands)
    limits = list(ints(at.op, "limit_indices"))
    for d, n in enumerate(at.shape(0)):
        if at.layouts[0].dims[d]:
            limits[d] = n
    copy.attributes["limit_indices"] = hlo.i64s(limits)
    return list(copy.results)


def _dynamic_slice(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    copy = at.clone(operands)
    copy.attributes["slice_sizes"] = hlo.i64s(at.shape(len(operands)))
    return list(copy.results)


def _convolution(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """As many groups as the member has."""
    copy = at.clone(operands)
    for name in ("feature_group_count", "batch_group_count"):
        count = ir.IntegerAttr(at.op.attributes[name]).value
        if count > 1:
            groups = next(
                f
                for f, n in enumerate(at.rule.sizes)
                if n == count and _leads(at.rule, f)
            )
            copy.attributes[name] = hlo.i64(at.part(groups)[1])
    return list(copy.results)


def _leads(rule: Rule, factor: int) -> bool:
    """Whether the factor is the major one of a dimension of several."""
    dims = [dim for tensor in rule.tensors for dim in tensor]
    return any(len(dim) > 1 and dim[0] == factor for dim in dims)


# --- indices ---


def _own_windows(
    at: Local, windows: Windows, indices: Value
) -> tuple[Value, list[tuple[int, int]]]:
    """Indices from the start of the member's part; (component, size) of cut dims."""
    dims = at.rule.operands[0]
    offsets, cut = [], []
    for component, d in enumerate(windows.index_map):
        offset, size = at.part(dims[d][0])
        looked_up = d in windows.collapsed and at.layouts[0].dims[d]
        offsets.append(offset if looked_up else 0)
        if looked_up:
            cut.append((component, size))
    if not any(offsets):
        return indices, cut
    return hlo.subtract(indices, _components(offsets, windows, indices)), cut


def _components(numbers: Sequence[int], windows: Windows, indices: Value) -> Value:
    """One number for each component, at every index vector."""
    shape = hlo.shape_of(indices)
    element = hlo.element_type(indices)
    if windows.index_vector == len(shape):
        return hlo.constant_like(indices, numbers[0])
    type_ = hlo.tensor((len(numbers),), element)
    vector = constants.make(np.array(numbers), type_)
    return hlo.broadcast_in_dim(vector, shape, [windows.index_vector])


def _gather(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Rows that the member has; zeros for the others, to be summed over members.

    The whole gather clamps its indices first: so must each member.
    """
    windows = Windows.of_gather(at.op.attributes["dimension_numbers"])
    operand, indices = operands
    if any(d in windows.collapsed and at.layouts[0].dims[d] for d in windows.index_map):
        indices = _clamped(at, windows, indices)
    local, cut = _own_windows(at, windows, indices)
    copy = at.clone([operand, local])
    sizes = list(ints(at.op, "slice_sizes"))
    for d, n in enumerate(at.shape(0)):
        if at.layouts[0].dims[d] and d not in windows.collapsed:
            sizes[d] = n
    for d in windows.operand_batching:
        sizes[d] = 1
    if any(size == 0 for _, size in cut):  # nothing to look up in
        copy.erase()
        type_ = hlo.tensor(at.shape(2), hlo.element_type(at.op.results[0]))
        return [hlo.zeros(type_)]
    copy.attributes["slice_sizes"] = hlo.i64s(sizes)
    found = copy.results[0]
    if not cut:
        return [found]
    mask = _mask(windows, local, cut, hlo.shape_of(found))
    return [hlo.select(mask, found, hlo.zeros(found.type))]


def _clamped(at: Local, windows: Windows, indices: Value) -> Value:
    """Indices into the whole operand, as the gather would clamp them."""
    whole = tuple(ir.RankedTensorType(at.op.operands[0].type).shape)
    sizes = ints(at.op, "slice_sizes")
    last = [whole[d] - sizes[d] for d in windows.index_map]
    high = _components(last, windows, indices)
    return hlo.clamp(hlo.zeros(indices.type), indices, high)


def _mask(
    windows: Windows,
    indices: Value,
    cut: Sequence[tuple[int, int]],
    shape: Sequence[int],
) -> Value:
    """Where every cut component points into the member's part, at that shape."""
    batch = [d for d in range(len(shape)) if d not in windows.offset]
    inside: Value | None = None
    for component, size in cut:
        one = _component(windows, indices, component)
        fits = hlo.and_(
            hlo.compare("GE", one, hlo.zeros(one.type)),
            hlo.compare("LT", one, hlo.constant_like(one, size)),
        )
        inside = fits if inside is None else hlo.and_(inside, fits)
    assert inside is not None
    return hlo.broadcast_in_dim(inside, shape, batch)


def _component(windows: Windows, indices: Value, component: int) -> Value:
    """One component of each index vector, without the vector's dimension."""
    shape, d = list(hlo.shape_of(indices)), windows.index_vector
    if d == len(shape):
        return indices
    start, limit = [0] * len(shape), list(shape)
    start[d], limit[d] = component, component + 1
    return hlo.reshape(hlo.slice_(indices, start, limit), shape[:d] + shape[d + 1 :])


def _scatter(at: Local, operands: Sequence[Value]) -> Sequence[Value]:
    """Updates that fall into the member's part; the others drop out of range.

    Where updates are cut, results are summed over members: only the first of them
    starts from the operand, the others from zeros.
    """
    windows = Windows.of_scatter(at.op.attributes["scatter_dimension_numbers"])
    count = len(operands) // 2
    local, _ = _own_windows(at, windows, operands[count])
    start = list(operands[:count])
    summed = at.rule.reductions(at.assignment).get("sum", ())
    if any(at.place[axis] for axis in summed):
        start = [v if constants.splat(v) == 0 else hlo.zeros(v.type) for v in start]
    return list(at.clone([*start, local, *operands[count + 1 :]]).results)


# --- bodies that see outer values cannot be cloned alone ---


def check_closed(op: ir.Operation) -> None:
    """Refuse a reduction whose body uses a value from outside."""
    for region in op.regions:
        for block in region.blocks:
            inside = set(block.arguments)
            for view in block.operations:
                inner = view.operation
                if any(v not in inside for v in inner.operands):
                    refuse(op, "its body uses a value from outside; pass it in")
                inside.update(inner.results)


ADJUST: dict[str, Adjust] = {
    "arith.constant": _constant,
    "stablehlo.constant": _constant,
    "stablehlo.convolution": _convolution,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.gather": _gather,
    "stablehlo.iota": _iota,
    "stablehlo.scatter": _scatter,
    "stablehlo.slice": _slice,
}
