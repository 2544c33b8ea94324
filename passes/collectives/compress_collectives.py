"""pcp-compress-collectives: floats travel in a narrower type."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from pcp.dialect.bindings import ir
from pcp.errors import PassError, nearest
from pcp.passes.core.base import Pass
from pcp.passes.core.functions import KEPT, ROLE, result_attributes, string
from pcp.passes.core.rewriting import all_functions, defining, operations

NARROWED = ("pcp.all_reduce", "pcp.reduce_scatter", "pcp.all_gather")
WIRES = {"bf16": ir.BF16Type.get, "f16": ir.F16Type.get}


@dataclass(frozen=True)
class CompressCollectives(Pass):
    """Let all_reduce, reduce_scatter and all_gather of floats travel as `wire`.

    Those with operands of at least `min-bytes`, of a float type wider than `wire`, and
    without a wire type of their own. Each member's contribution is rounded once;
    reductions add up in f32, and their result is rounded once more. All members get
    the same bits. A sum of n contributions x is then off by at most
    `eps * (sum |x| + |sum x|)`, where eps is 2**-8 for bf16 and 2**-11 for f16, while
    values stay in the type's range: f16 overflows above 65504. What a step keeps is
    gathered as it is: rounded parameters would lose each update that is smaller.

    Before:

        %y = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m}
            : (tensor<512x512xf32>) -> tensor<512x512xf32>

    After:

        %y = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m, wire = bf16}
            : (tensor<512x512xf32>) -> tensor<512x512xf32>
    """

    name = "pcp-compress-collectives"
    wire: str
    min_bytes: int = 65536

    def run(self, module: ir.Module) -> None:
        """Set `wire` where it is worth it."""
        if self.wire not in WIRES:
            raise PassError(
                f"{self.name}: wire={self.wire} is not one of {', '.join(WIRES)}."
                + nearest(self.wire, WIRES)
            )
        with module.context:
            wire = WIRES[self.wire]()
            kept = {op for function in all_functions(module) for op in _kept(function)}
            for op in operations(module):
                if op.name not in NARROWED or op in kept:
                    continue
                if self._pays(op, wire.width):
                    op.attributes["wire"] = ir.TypeAttr.get(wire)

    def _pays(self, op: ir.Operation, width: int) -> bool:
        """Whether the op's tensor is of wide floats, and large.

        What counts is the whole tensor: members may hold parts of unequal sizes.
        """
        type_ = ir.RankedTensorType((op.results if _grows(op) else op.operands)[0].type)
        element = type_.element_type
        said = "wire" in op.attributes or "codec" in op.attributes
        if not isinstance(element, ir.FloatType) or said:
            return False
        wide = element.width
        return wide > width and prod(type_.shape) * wide // 8 >= self.min_bytes


def _kept(function: ir.Operation) -> Iterator[ir.Operation]:
    """The gathers that give what the function says are new parameters, or state."""
    returned = list(function.regions[0].blocks[0].operations)[-1].operands
    for value, said in zip(returned, result_attributes(function), strict=True):
        if string(said, ROLE) not in KEPT:
            continue
        while (op := defining(value)) is not None and _grows(op):
            yield op
            value = op.operands[0]


def _grows(op: ir.Operation) -> bool:
    return op.name == "pcp.all_gather"
