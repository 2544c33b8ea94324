"""gather, scatter and sort: builders, and one description of where windows lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo

Value = ir.Value


@dataclass(frozen=True)
class Windows:
    """Dimension numbers shared by a gather and the scatter that is its transpose.

    `offset`: dimensions of the gathered (or update) tensor that run inside a
    window. `collapsed`: operand dimensions of window size 1 that are left out of
    it. `operand_batching` and `indices_batching` are paired. Component k of an
    index vector counts along operand dimension `index_map[k]`; the components lie
    along `index_vector` of the indices (their rank: there is one component, not
    stored as a dimension).
    """

    offset: tuple[int, ...]
    collapsed: tuple[int, ...]
    operand_batching: tuple[int, ...]
    indices_batching: tuple[int, ...]
    index_map: tuple[int, ...]
    index_vector: int

    @classmethod
    def of_gather(cls, attribute: ir.Attribute) -> "Windows":
        """Read `#stablehlo.gather<...>`."""
        n = stablehlo.GatherDimensionNumbers(attribute)
        return cls(
            tuple(n.offset_dims),
            tuple(n.collapsed_slice_dims),
            tuple(n.operand_batching_dims),
            tuple(n.start_indices_batching_dims),
            tuple(n.start_index_map),
            n.index_vector_dim,
        )

    @classmethod
    def of_scatter(cls, attribute: ir.Attribute) -> "Windows":
        """Read `#stablehlo.scatter<...>`."""
        n = stablehlo.ScatterDimensionNumbers(attribute)
        return cls(
            tuple(n.update_window_dims),
            tuple(n.inserted_window_dims),
            tuple(n.input_batching_dims),
            tuple(n.scatter_indices_batching_dims),
            tuple(n.scattered_dims_to_operand_dims),
            n.index_vector_dim,
        )

    def _arguments(self) -> list[list[int]]:
        groups = (
            self.offset,
            self.collapsed,
            self.operand_batching,
            self.indices_batching,
            self.index_map,
        )
        return [list(group) for group in groups]

    def gather_attribute(self) -> ir.Attribute:
        """As `#stablehlo.gather<...>`."""
        return stablehlo.GatherDimensionNumbers.get(
            *self._arguments(), self.index_vector
        )

    def scatter_attribute(self) -> ir.Attribute:
        """As `#stablehlo.scatter<...>`."""
        return stablehlo.ScatterDimensionNumbers.get(
            *self._arguments(), self.index_vector
        )

    def window_sizes(self, operand: Sequence[int], updates: Sequence[int]) -> list[int]:
        """The slice size along each operand dimension, from the update's shape."""
        inside = iter(sorted(self.offset))
        left_out = {*self.collapsed, *self.operand_batching}
        return [
            1 if d in left_out else updates[next(inside)] for d in range(len(operand))
        ]

    def batch_shape(self, indices: Sequence[int]) -> list[int]:
        """The indices' shape without the dimension of the index vector."""
        return [n for d, n in enumerate(indices) if d != self.index_vector]

    def result_shape(
        self, indices: Sequence[int], sizes: Sequence[int]
    ) -> tuple[int, ...]:
        """What a gather of windows of `sizes` gives."""
        left_out = {*self.collapsed, *self.operand_batching}
        window = iter([n for d, n in enumerate(sizes) if d not in left_out])
        batch = iter(self.batch_shape(indices))
        rank = len(self.offset) + len(self.batch_shape(indices))
        return tuple(
            next(window) if d in set(self.offset) else next(batch) for d in range(rank)
        )


def gather(
    operand: Value,
    indices: Value,
    windows: Windows,
    sizes: Sequence[int],
    *,
    is_sorted: bool = False,
) -> Value:
    """Windows of `sizes` at run-time positions, clamped into the operand."""
    shape = windows.result_shape(hlo.shape_of(indices), sizes)
    return hlo.op(
        "gather",
        [operand, indices],
        [hlo.tensor(shape, hlo.element_type(operand))],
        dimension_numbers=windows.gather_attribute(),
        slice_sizes=hlo.i64s(sizes),
        indices_are_sorted=ir.BoolAttr.get(is_sorted),
    ).result


def scatter(
    operand: Value,
    indices: Value,
    updates: Value,
    windows: Windows,
    combine: Callable[[Value, Value], Value],
    *,
    is_sorted: bool = False,
    unique: bool = False,
) -> Value:
    """`operand` with `combine(old, update)` at run-time positions."""
    operation = hlo.op(
        "scatter",
        [operand, indices, updates],
        [operand.type],
        regions=1,
        scatter_dimension_numbers=windows.scatter_attribute(),
        indices_are_sorted=ir.BoolAttr.get(is_sorted),
        unique_indices=ir.BoolAttr.get(unique),
    )
    scalar = hlo.tensor((), hlo.element_type(operand))
    hlo.body(operation, [scalar, scalar], combine)
    return operation.result


def index_limits(
    windows: Windows, operand: Sequence[int], sizes: Sequence[int]
) -> list[int]:
    """The largest index at which a whole window fits, per index component."""
    return [operand[d] - sizes[d] for d in windows.index_map]


def per_component(values: Sequence[int], indices: Value, windows: Windows) -> Value:
    """Integers, one per index component, in the shape and type of the indices.

    One that does not fit the index type becomes the largest that does.
    """
    element = ir.IntegerType(hlo.element_type(indices))
    bits = element.width - (0 if element.is_unsigned else 1)
    values = [min(v, 2**bits - 1) for v in values]
    shape = hlo.shape_of(indices)
    if len(set(values)) == 1:
        return hlo.constant(values[0], hlo.tensor(shape, element))
    kind = f"{'u' if element.is_unsigned else ''}int{element.width}"
    array = np.array(values, np.dtype(kind))
    vector = hlo.tensor((len(values),), element)
    dense = ir.DenseElementsAttr.get(array, type=vector)
    constant = hlo.op("constant", [], [vector], value=dense).result
    return hlo.broadcast_in_dim(constant, shape, [windows.index_vector])


def clamp_indices(
    indices: Value, windows: Windows, operand: Sequence[int], sizes: Sequence[int]
) -> Value:
    """Indices as a gather reads them: moved to where the whole window fits."""
    limits = index_limits(windows, operand, sizes)
    if not limits:
        return indices
    high = per_component(limits, indices, windows)
    return hlo.clamp(hlo.zeros(indices.type), indices, high)


def sort(
    operands: Sequence[Value],
    dimension: int,
    less: Callable[..., Value],
    *,
    is_stable: bool = True,
) -> list[Value]:
    """All operands in the order that `less(a0, b0, a1, b1, ...)` puts them."""
    operation = hlo.op(
        "sort",
        operands,
        [x.type for x in operands],
        regions=1,
        dimension=hlo.i64(dimension),
        is_stable=ir.BoolAttr.get(is_stable),
    )
    scalars = [hlo.tensor((), hlo.element_type(x)) for x in operands]
    hlo.body(operation, [t for t in scalars for _ in range(2)], less)
    return list(operation.results)
