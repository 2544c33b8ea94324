"""Patterns of pcp-simplify on convolutions: layouts are numbers, not copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Dims
from pcp.passes.core.rewriting import attributes, defining, ints
from pcp.passes.simplify.simplify_options import Options

Values = Sequence[ir.Value]
Places = tuple[int, int, tuple[int, ...]]


def convolution_of_transposes(op: ir.Operation, options: Options) -> Values | None:
    """A transposed operand: say it in the dimension numbers."""
    dims = Dims.of(op.attributes["dimension_numbers"])
    operands = list(op.operands)
    found = [defining(x, "transpose") for x in operands]
    if not any(source is not None for source in found):
        return None
    for i, (source, side) in enumerate(zip(found, ("input", "kernel"), strict=True)):
        if source is not None:
            places = _moved(getattr(dims, side), ints(source, "permutation"))
            operands[i], dims = source.operands[0], replace(dims, **{side: places})
    return _again(op, operands, dims, op.result.type)


def transposed_convolution(op: ir.Operation, options: Options) -> Values | None:
    """A transposed result that nobody else reads: the same.

    Results with features in front of the batch are left: StableHLO's reference
    interpreter ends the process on them.
    """
    source = defining(op.operands[0], "convolution")
    if source is None or sum(1 for _ in source.result.uses) != 1:
        return None
    permutation = ints(op, "permutation")
    inverse = [permutation.index(d) for d in range(len(permutation))]
    dims = Dims.of(source.attributes["dimension_numbers"])
    dims = replace(dims, output=_moved(dims.output, inverse))
    batch, feature, _ = dims.output
    if feature < batch:
        return None
    return _again(source, list(source.operands), dims, op.result.type)


def _moved(places: Places, where: Sequence[int]) -> Places:
    batch, feature, spatial = places
    return where[batch], where[feature], tuple(where[d] for d in spatial)


def _again(
    op: ir.Operation, operands: Sequence[ir.Value], dims: Dims, type_: ir.Type
) -> Values:
    kept = attributes(op)
    kept["dimension_numbers"] = dims.attribute()
    return hlo.op("convolution", operands, [type_], **kept).results
