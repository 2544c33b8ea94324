"""`pcp-batch-lookups`: a lookup in a row of one's own says so.

`logits[arange(n), labels]`, as PyTorch writes the picking of the labels' logits, names
each row by a number. A pass that cuts the rows, between devices or into microbatches,
has to know that row i is asked for by place i alone: a batching dimension says that.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows
from pcp.passes.analysis.ranges import piece
from pcp.passes.core.base import Pass
from pcp.passes.core.fold import evaluate
from pcp.passes.core.rewriting import (
    before,
    functions,
    operations,
    sweep,
)

Value = ir.Value

#: Elements of indices that are looked at, at most.
LIMIT = 1 << 24


@dataclass(frozen=True)
class BatchLookups(Pass):
    """Make components of gather and scatter indices that count rows batching dims.

    Assumes static shapes. A component that is 0, 1, 2, ... along a dimension of the
    indices, which is as long as the operand's, leaves the index vector, unless nothing
    would be left of it. What a component is, is found by folding constants.

    Before and after:

        %rows = stablehlo.iota dim = 0 : tensor<8x1xi64>
        %i = stablehlo.concatenate %rows, %labels, dim = 1 : ... -> tensor<8x2xi64>
        %y = "stablehlo.gather"(%x, %i) <{collapsed_slice_dims = [0, 1],
          start_index_map = [0, 1], index_vector_dim = 1, slice_sizes = [1, 1]}>

        %y = "stablehlo.gather"(%x, %labels) <{operand_batching_dims = [0],
          start_indices_batching_dims = [0], collapsed_slice_dims = [1],
          start_index_map = [1], index_vector_dim = 1, slice_sizes = [1, 1]}>
    """

    name = "pcp-batch-lookups"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        with module.context:
            for op in operations(module):
                if op.name in FORMS:
                    _rewrite(op, FORMS[op.name])
            for function in functions(module):
                sweep(function)


@dataclass(frozen=True)
class LookupForm:
    """Where an op has its dimension numbers, and how to read and write them."""

    name: str
    read: Callable[[ir.Attribute], Windows]
    write: Callable[[Windows], ir.Attribute]


FORMS = {
    "stablehlo.gather": LookupForm(
        "dimension_numbers", Windows.of_gather, Windows.gather_attribute
    ),
    "stablehlo.scatter": LookupForm(
        "scatter_dimension_numbers", Windows.of_scatter, Windows.scatter_attribute
    ),
}


def _rewrite(op: ir.Operation, form: LookupForm) -> None:
    place = len(op.operands) // 2  # behind the operands, of which a scatter has many
    with before(op):
        windows, indices = batched(
            form.read(op.attributes[form.name]),
            hlo.shape_of(op.operands[0]),
            op.operands[place],
        )
        if indices != op.operands[place]:
            op.operands[place] = indices
            op.attributes[form.name] = form.write(windows)
            op.attributes["indices_are_sorted"] = ir.BoolAttr.get(False)


def batched(
    windows: Windows, operand: Sequence[int], indices: Value
) -> tuple[Windows, Value]:
    """The same windows and indices, with batching dims for components that count.

    `operand` is the operand's shape. Builds at the current insertion point.
    """
    batching = dict(
        zip(windows.operand_batching, windows.indices_batching, strict=True)
    )
    vector, kept = windows.index_vector, {}
    for k, d in enumerate(windows.index_map):
        column = component(indices, vector, k)
        free = set(range(column.type.rank)) - {vector, *batching.values()}
        along = _counted(column, free) if d in windows.collapsed else None
        if along is not None and hlo.shape_of(column)[along] == operand[d]:
            batching[d] = along
        else:
            kept[d] = column
    if len(kept) in (0, len(windows.index_map)):
        return windows, indices
    found = replace(
        windows,
        collapsed=tuple(d for d in windows.collapsed if d not in batching),
        operand_batching=tuple(sorted(batching)),
        indices_batching=tuple(batching[d] for d in sorted(batching)),
        index_map=tuple(kept),
    )
    first, *others = kept.values()
    return found, hlo.concatenate([first, *others], vector) if others else first


def component(indices: Value, vector: int, k: int) -> Value:
    """Component k of each index vector, where these lie along dimension `vector`."""
    indices, k = piece(indices, vector, k)
    shape = list(hlo.shape_of(indices))
    if vector == len(shape) or shape[vector] == 1:
        return indices
    start, limit = [0] * len(shape), shape
    start[vector], limit[vector] = k, k + 1
    return hlo.slice_(indices, start, limit)


def _counted(column: Value, dims: Iterable[int]) -> int | None:
    """The dimension among these along which the elements are 0, 1, 2, ...; or None."""
    elements = evaluate(column, LIMIT)
    if elements is None:
        return None
    for d in sorted(dims):
        size = elements.shape[d]
        count = np.arange(size).reshape(
            [size if i == d else 1 for i in range(elements.ndim)]
        )
        if size > 1 and (elements == count).all():
            return d
    return None
