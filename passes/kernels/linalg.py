"""Contractions as `linalg` ops with the schedule that IREE is to follow."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.kernels.contractions import Contraction
from pcp.passes.kernels.tiles import KernelTiles

REGION = "flow.dispatch.region"
"""IREE's own op around what is to be one kernel."""


@contextmanager
def foreign(context: ir.Context) -> Iterator[None]:
    """Let the context take IREE's own ops and attributes meanwhile."""
    before = context.allow_unregistered_dialects
    context.allow_unregistered_dialects = True
    try:
        yield
    finally:
        context.allow_unregistered_dialects = before


def product(
    shape: Contraction, left: ir.Value, right: ir.Value, tiles: KernelTiles
) -> ir.Value:
    """`linalg.matmul` or `linalg.batch_matmul` into zeros, tiled as `tiles` says."""
    element = hlo.element_type(left)
    type_ = hlo.tensor(shape.result, element)
    op = hlo.op(
        "linalg.batch_matmul" if shape.batch else "linalg.matmul",
        [left, right, _zeros(type_)],
        [type_],
        regions=1,
        operandSegmentSizes=ir.DenseI32ArrayAttr.get([2, 1]),
        indexing_maps=_maps(shape),
        compilation_info=ir.Attribute.parse(_schedule(shape, tiles)),
    )
    _body(op, [element] * 3, multiply=True)
    return op.result


def turned(value: ir.Value) -> ir.Value:
    """A matrix transposed by a kernel of its own.

    IREE would fold another transpose into the product that reads it. A barrier would
    hold it too, but cuts the program in two: a submission and memory for each part.
    """
    element = hlo.element_type(value)
    type_ = hlo.tensor(hlo.shape_of(value)[::-1], element)

    def transpose() -> ir.Value:
        permutation = ir.DenseI64ArrayAttr.get([1, 0])
        operands = [value, _empty(type_)]
        op = hlo.op("linalg.transpose", operands, [type_], 1, permutation=permutation)
        _body(op, [element] * 2, multiply=False)
        return op.result

    return kernel(type_, transpose)


def kernel(type_: ir.Type, build: Callable[[], ir.Value]) -> ir.Value:
    """What `build` makes, in a kernel of its own; the context takes IREE's ops."""
    region = hlo.op(
        REGION,
        [],
        [type_],
        regions=2,
        operandSegmentSizes=ir.DenseI32ArrayAttr.get([0, 0]),
    )
    with ir.InsertionPoint(region.regions[0].blocks.append()):
        hlo.op("flow.return", [build()], [])
    return region.result


def _empty(type_: ir.RankedTensorType) -> ir.Value:
    return hlo.op("tensor.empty", [], [type_]).result


def _zeros(type_: ir.RankedTensorType) -> ir.Value:
    element = type_.element_type
    zero = hlo.op("arith.constant", [], [element], value=ir.FloatAttr.get(element, 0.0))
    segments: dict[str, Any] = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1])}
    fill = hlo.op(
        "linalg.fill", [zero.result, _empty(type_)], [type_], regions=1, **segments
    )
    _body(fill, [element] * 2, multiply=False)
    return fill.result


def _body(op: ir.Operation, types: list[ir.Type], *, multiply: bool) -> None:
    """What linalg's named ops say of themselves inside: `c + a·b`, or `a`."""
    block = op.regions[0].blocks.append(*types, arg_locs=[op.location] * len(types))
    with ir.InsertionPoint(block):
        value: ir.Value = block.arguments[0]
        if multiply:
            _, b, c = block.arguments
            by = hlo.op("arith.mulf", [value, b], [types[0]])
            value = hlo.op("arith.addf", [c, by.result], [types[0]]).result
        hlo.op("linalg.yield", [value], [])


def _maps(shape: Contraction) -> ir.ArrayAttr:
    """Which loops index which operand, by the form; loops are (b,) m, n, k."""
    batch = ["b"] if shape.batch else []
    first = ["m", "k"] if shape.form[0] == "N" else ["k", "m"]
    second = ["k", "n"] if shape.form[1] == "N" else ["n", "k"]
    loops = [*batch, "m", "n", "k"]
    return ir.ArrayAttr.get(
        [
            ir.AffineMapAttr.get(
                ir.AffineMap.get(
                    len(loops),
                    0,
                    [ir.AffineDimExpr.get(loops.index(x)) for x in [*batch, *letters]],
                )
            )
            for letters in (first, second, ["m", "n"])
        ]
    )


def _schedule(shape: Contraction, tiles: KernelTiles) -> str:
    """IREE's attribute: tiles of the loops at each level, and the code generator."""
    batch = "1, " if shape.batch else ""
    none = "0, " if shape.batch else ""
    part = f"[{batch}{tiles.part_rows}, {tiles.part_columns}, 0]"
    vector = f"[{batch}{tiles.rows}, {tiles.columns}, 0]"
    levels = (
        f"distribution = {part}, vector_common_parallel = {vector}, "
        f"vector_reduction = [{none}0, 0, {tiles.depth}]"
    )
    return (
        "#iree_codegen.compilation_info<"
        f"lowering_config = #iree_cpu.lowering_config<{levels}>, "
        "translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
    )
