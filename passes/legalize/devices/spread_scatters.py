"""`pcp-spread-scatters`: a scatter whose rows may meet, in parallel.

IREE's GPU code gives such a scatter to one thread, which writes row after row: the
gradient of an embedding is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, gather, scatter
from pcp.passes.analysis.distinct import rows_differ
from pcp.passes.core.base import Pass
from pcp.passes.core.constants import splat
from pcp.passes.core.elementwise import COMMUTATIVE, body_kind, identity, inline
from pcp.passes.core.rewriting import before, operations


@dataclass(frozen=True)
class SpreadScatters(Pass):
    """Fold the rows of a scatter that meet before they are written.

    Assumes what pcp-legalize leaves: indices `[M, K]` in range, whole rows. A scatter
    whose rows provably differ is only marked. Else `V` rows of the operand stand
    against `M` updates. With `V <= M`, each row folds the updates that point to it, and
    no scatter is left. With `V > M`, each update becomes the fold of all that point
    where it does; equal rows then write equal numbers. That is V·M or M·M selects for
    each number of a row, in parallel; nothing of that size is held. Numbers are added
    in another order. A body that is not one commutative op on both values stays as it
    is. Before and after, for `V = 2` and `M = 3`:

        %0 = stablehlo.scatter(%w, %indices, %updates) ({ ... add ... })
            : (tensor<2x4xf32>, tensor<3x1xi32>, tensor<3x4xf32>) -> tensor<2x4xf32>

        %hits = stablehlo.compare EQ, %rows, %places : ... -> tensor<2x3xi1>
        %1 = stablehlo.select %hits, %updates, %nothing : ... tensor<2x3x4xf32>
        %2 = stablehlo.reduce(%1) applies add across dimensions = [1] : tensor<2x4xf32>
        %0 = stablehlo.add %w, %2 : tensor<2x4xf32>
    """

    name = "pcp-spread-scatters"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        for op in operations(module):
            if op.name == "stablehlo.scatter" and not _is_unique(op):
                with before(op):
                    _rewrite(op)


def _is_unique(op: ir.Operation) -> bool:
    return ir.BoolAttr(op.attributes["unique_indices"]).value


def _rewrite(op: ir.Operation) -> None:
    if rows_differ(op.operands[1]):
        op.attributes["unique_indices"] = ir.BoolAttr.get(True)
    elif (nothing := _neutral(op)) is not None:
        op.result.replace_all_uses_with(_spread(op, nothing))
        op.erase()


def _neutral(op: ir.Operation) -> float | int | bool | None:
    """What changes nothing in the scatter's body; None for a body we leave."""
    kind = body_kind(op.regions[0].blocks[0])
    if kind not in COMMUTATIVE:
        return None
    return identity(kind, hlo.element_type(op.result))


def _spread(op: ir.Operation, nothing: float | int | bool) -> ir.Value:
    operand, indices, updates = op.operands
    shape, (count, columns) = hlo.shape_of(operand), hlo.shape_of(indices)
    rows, width = prod(shape[:columns]), prod(shape[columns:])
    place = _places(indices, shape[:columns])
    values = hlo.reshape(updates, [count, width])
    if rows <= count:
        each = hlo.iota(hlo.tensor([rows], hlo.element_type(place)), 0)
        total = hlo.reshape(_folded(op, each, place, values, nothing), shape)
        return _combined(op, operand, total)
    total = hlo.reshape(
        _folded(op, place, place, values, nothing), hlo.shape_of(updates)
    )
    windows = Windows.of_scatter(op.attributes["scatter_dimension_numbers"])
    same = splat(operand)
    if same is not None:
        old = hlo.constant_like(total, same)
    else:
        sizes = [*([1] * columns), *shape[columns:]]
        old = gather(operand, indices, windows, sizes)
    # Held: read row by row while others are written, some rows would count twice.
    new = hlo.optimization_barrier(_combined(op, old, total))
    return scatter(operand, indices, new, windows, lambda _, b: b, unique=True)


def _combined(op: ir.Operation, old: ir.Value, new: ir.Value) -> ir.Value:
    return inline(op.regions[0].blocks[0], [old, new])[0]


def _places(indices: ir.Value, shape: Sequence[int]) -> ir.Value:
    """The numbers of the rows that `[M, K]` points to, as `[M]`."""
    if prod(shape) >= 2**31:
        indices = hlo.convert(indices, ir.IntegerType.get_signless(64))
    count = hlo.shape_of(indices)[0]
    first, *rest = (
        hlo.reshape(hlo.slice_(indices, [0, k], [count, k + 1]), [count])
        for k in range(len(shape))
    )
    for column, size in zip(rest, shape[1:], strict=True):
        first = hlo.add(hlo.multiply(first, hlo.constant_like(first, size)), column)
    return first


def _folded(
    op: ir.Operation,
    wanted: ir.Value,
    place: ir.Value,
    values: ir.Value,
    nothing: float | int | bool,
) -> ir.Value:
    """For each of `[W]` the fold of the rows of `[M, D]` whose place it is."""
    (many,), (count, width) = hlo.shape_of(wanted), hlo.shape_of(values)
    grid = [many, count, width]
    element = hlo.element_type(values)
    hits = hlo.compare(
        "EQ",
        hlo.broadcast_in_dim(wanted, grid, [0]),
        hlo.broadcast_in_dim(place, grid, [1]),
    )
    given = hlo.broadcast_in_dim(values, grid, [1, 2])
    chosen = hlo.select(hits, given, hlo.constant_like(given, nothing))
    block = op.regions[0].blocks[0]
    return hlo.reduce(
        chosen,
        hlo.scalar(nothing, element),
        [1],
        lambda a, b: inline(block, [a, b])[0],
    )
