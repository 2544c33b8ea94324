"""Contractions as `linalg` ops with the schedule that IREE is to follow."""

from collections.abc import Callable, Iterator, Sequence
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
    batch = ["b"] if shape.batch else []
    first = ["m", "k"] if shape.form[0] == "N" else ["k", "m"]
    second = ["k", "n"] if shape.form[1] == "N" else ["n", "k"]
    op = hlo.op(
        "linalg.batch_matmul" if shape.batch else "linalg.matmul",
        [left, right, _zeros(type_)],
        [type_],
        regions=1,
        operandSegmentSizes=ir.DenseI32ArrayAttr.get([2, 1]),
        indexing_maps=_maps([*batch, "m", "n", "k"], first, second, ["m", "n"]),
        compilation_info=ir.Attribute.parse(
            _schedule(
                [1] * len(batch) + [tiles.part_rows, tiles.part_columns],
                [1] * len(batch) + [tiles.rows, tiles.columns],
                tiles.depth,
            )
        ),
    )
    _body(op, [element] * 3, multiply=True)
    return op.result


def panel_product(
    shape: Contraction, left: ir.Value, panels: ir.Value, tiles: KernelTiles
) -> ir.Value:
    """The same as `linalg.generic`, of a right operand that lies in `in_panels`."""
    element, width = hlo.element_type(left), tiles.columns
    batch = ["b"] if shape.batch else []
    count = shape.columns // width
    type_ = hlo.tensor([*shape.result[:-1], count, width], element)
    first = ["m", "k"] if shape.form[0] == "N" else ["k", "m"]
    loops = [*batch, "m", "p", "n", "k"]
    kinds = ["parallel"] * (len(loops) - 1) + ["reduction"]
    op = hlo.op(
        "linalg.generic",
        [left, panels, _zeros(type_)],
        [type_],
        regions=1,
        operandSegmentSizes=ir.DenseI32ArrayAttr.get([2, 1]),
        indexing_maps=_maps(loops, first, ["p", "k", "n"], ["m", "p", "n"]),
        iterator_types=ir.ArrayAttr.get(
            [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]
        ),
        compilation_info=ir.Attribute.parse(
            _schedule(
                [1] * len(batch) + [tiles.part_rows, tiles.part_columns // width, 0],
                [1] * len(batch) + [tiles.rows, 1, width],
                tiles.depth,
            )
        ),
    )
    _body(op, [element] * 3, multiply=True)
    return hlo.reshape(op.result, shape.result)


def turned(value: ir.Value) -> ir.Value:
    """Matrices transposed by a kernel of its own."""
    *batch, first, second = range(len(hlo.shape_of(value)))
    return _transposed(value, [*batch, second, first])


def in_panels(shape: Contraction, right: ir.Value, width: int) -> ir.Value:
    """The right operand as panels of `width` columns, each with its rows together.

    Rows of a panel follow each other in memory, whatever lies between those of the
    operand: none evicts another from the first cache.
    """
    batch, count = shape.right[:-2], shape.columns // width
    place, form = len(batch), shape.form[1]
    if form == "N":
        split = [*batch, shape.depth, count, width]
        order = [place + 1, place, place + 2]
    else:
        split = [*batch, count, width, shape.depth]
        order = [place, place + 2, place + 1]
    return _transposed(hlo.reshape(right, split), [*range(place), *order])


def _transposed(value: ir.Value, order: Sequence[int]) -> ir.Value:
    """A tensor with its dims in this order, by a kernel of its own.

    IREE would fold another transpose into the product that reads it. A barrier would
    hold it too, but cuts the program in two: a submission and memory for each part.
    """
    element, extents = hlo.element_type(value), hlo.shape_of(value)
    type_ = hlo.tensor([extents[dim] for dim in order], element)

    def transpose() -> ir.Value:
        permutation = ir.DenseI64ArrayAttr.get(list(order))
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


def _maps(loops: Sequence[str], *operands: Sequence[str]) -> ir.ArrayAttr:
    """Which loops index which operand; a batch indexes all."""
    batch = [x for x in loops if x == "b"]
    return ir.ArrayAttr.get(
        [
            ir.AffineMapAttr.get(
                ir.AffineMap.get(
                    len(loops),
                    0,
                    [ir.AffineDimExpr.get(loops.index(x)) for x in [*batch, *letters]],
                )
            )
            for letters in operands
        ]
    )


def _schedule(part: Sequence[int], vector: Sequence[int], depth: int) -> str:
    """IREE's attribute: tiles of the loops at each level, and the code generator."""
    none = [0] * len(vector)
    levels = (
        f"distribution = {[*part, 0]}, vector_common_parallel = {[*vector, 0]}, "
        f"vector_reduction = {[*none, depth]}"
    )
    return (
        "#iree_codegen.compilation_info<"
        f"lowering_config = #iree_cpu.lowering_config<{levels}>, "
        "translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
    )
