"""Where the windows of a scatter lie: dims, index columns, and which are in range."""

from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.analysis import ranges
from pcp.passes.core.rewriting import refuse


@dataclass(frozen=True)
class Geometry:
    """Where a scatter's window lies: all per dim of the operand."""

    shape: tuple[int, ...]
    window: tuple[int, ...]  # 1 along inserted and batching dims
    indexed: tuple[int, ...]  # dims that the index vector or a batch dim addresses
    batching: tuple[int, ...]

    @property
    def full(self) -> list[int]:
        """Dims that every window covers: the rows that are moved as one."""
        return [
            d
            for d, n in enumerate(self.shape)
            if self.window[d] == n and d not in self.batching
        ]

    @property
    def addressed(self) -> list[int]:
        """The other dims, each with an index column."""
        return [d for d in range(len(self.shape)) if d not in self.full]


def read_geometry(
    numbers: stablehlo.ScatterDimensionNumbers, operand: ir.Value, updates: ir.Value
) -> Geometry:
    """The geometry that a scatter's numbers say."""
    shape = hlo.shape_of(operand)
    single = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    window = [1] * len(shape)
    free = [d for d in range(len(shape)) if d not in single]
    for d, w in zip(free, numbers.update_window_dims, strict=True):
        window[d] = hlo.shape_of(updates)[w]
    batching = tuple(numbers.input_batching_dims)
    indexed = (*numbers.scattered_dims_to_operand_dims, *batching)
    return Geometry(shape, tuple(window), indexed, batching)


def start_columns(
    op: ir.Operation,
    numbers: stablehlo.ScatterDimensionNumbers,
    geometry: Geometry,
    indices: ir.Value,
) -> tuple[dict[int, ir.Value], ir.Value | None]:
    """The start index of each indexed dim as `[N]`, in range, and which N are.

    The second is None when all of them are, whatever the data.
    """
    shape, vector = hlo.shape_of(indices), numbers.index_vector_dim
    element = hlo.element_type(indices)
    columns: dict[int, ir.Value] = {}
    inside: ir.Value | None = None
    for k, d in enumerate(numbers.scattered_dims_to_operand_dims):
        column = _component(indices, vector, k)
        highest = geometry.shape[d] - geometry.window[d]
        found = ranges.component(indices, vector, k)
        if found is None or found[0] < 0 or found[1] > highest:
            bound = min(highest, ranges.limits(indices.type)[1])
            low, high = hlo.scalar(0, element), hlo.scalar(bound, element)
            clamped = hlo.clamp(low, column, high)
            good = hlo.compare("EQ", clamped, column)
            inside = good if inside is None else hlo.and_(inside, good)
            column = clamped
        columns[d] = _narrow(op, column, geometry.shape[d])
    outer = [n for i, n in enumerate(shape) if i != vector]
    batches = zip(geometry.batching, numbers.scatter_indices_batching_dims, strict=True)
    for d, i in batches:
        counts = hlo.iota(hlo.tensor(outer, index_type(geometry)), i - (i > vector))
        columns[d] = hlo.reshape(counts, [prod(outer)])
    return columns, inside


def _component(indices: ir.Value, dimension: int, k: int) -> ir.Value:
    """Component `k` of each index vector, flat."""
    shape = hlo.shape_of(indices)
    if dimension == len(shape):
        return hlo.reshape(indices, [prod(shape)])
    if shape[dimension] == 1:
        return hlo.reshape(indices, [prod(shape)])
    start = [k if d == dimension else 0 for d in range(len(shape))]
    limit = [k + 1 if d == dimension else n for d, n in enumerate(shape)]
    part = hlo.slice_(indices, start, limit)
    return hlo.reshape(part, [hlo.size(part)])


def index_type(geometry: Geometry) -> ir.Type:
    """An integer that counts along every dim."""
    wide = max(geometry.shape, default=0) >= 2**31
    return ir.IntegerType.get_signless(64 if wide else 32)


def _narrow(op: ir.Operation, column: ir.Value, size: int) -> ir.Value:
    """In range by now, so 32 bits do unless the dim is longer."""
    if size >= 2**31:
        refuse(op, f"a scattered dim of {size} elements needs more than 32 bits")
    return hlo.convert(column, ir.IntegerType.get_signless(32))
