"""Walks over a function's ops: blocks, their ends, and the control flow in them."""

from collections.abc import Iterator

from pcp.dialect.bindings import ir

#: Ops whose regions hold a program of their own, not the body of a reduction.
CONTROL_FLOW = ("stablehlo.while", "stablehlo.case", "stablehlo.if")


def block_of(op: ir.Operation, region: int) -> ir.Block:
    """The only block of a region."""
    return op.regions[region].blocks[0]


def returned(block: ir.Block) -> ir.Operation:
    """A block's terminator."""
    *_, end = block.operations
    return end.operation


def walk(block: ir.Block) -> Iterator[ir.Operation]:
    """The ops of a block and of the control flow in it, outer before inner."""
    for view in block.operations:
        op = view.operation
        yield op
        if op.name in CONTROL_FLOW:
            for region in op.regions:
                for inner in region.blocks:
                    yield from walk(inner)


def element_width(value: ir.Value) -> int:
    """Bytes of an element on the wire."""
    element = ir.RankedTensorType(value.type).element_type
    if isinstance(element, ir.ComplexType):
        return 2 * element.element_type.width // 8
    return max(1, element.width // 8)


def used(op: ir.Operation) -> Iterator[ir.Value]:
    """The operands, and what regions use."""
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from used(inner.operation)
