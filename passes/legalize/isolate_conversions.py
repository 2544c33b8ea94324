"""`pcp-isolate-conversions`: keep conversions out of kernels that cannot take them.

IREE copies the conversion of a narrow type into the kernel that uses it. Its SPIR-V
code generator then reads rows of 16-bit floats as words, and finds no instruction to
take these apart ("failed to legalize operation 'vector.bitcast'"). Its tiling for
CUDA and ROCm distributes the conversion in a scatter, and finds no loop to fuse it
with ("failed to apply fusion + hoisting patterns"). For a CPU it keeps the converted
updates of a scatter whole on the kernel's stack ("exceeded stack allocation limit").
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.errors import PassError, nearest
from pcp.passes.core.base import Pass
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.narrow_floats import MOVES, is_narrow
from pcp.passes.core.rewriting import CONTRACTIONS, before, operations
from pcp.passes.legalize.legalize_narrow import comes_converted

KINDS = {
    "contractions": (*CONTRACTIONS, "stablehlo.reduce"),
    "scatters": ("stablehlo.scatter",),
}

#: What IREE puts into the kernel of the op that uses it.
FUSED = MOVES | ELEMENTWISE


@dataclass(frozen=True)
class IsolateConversions(Pass):
    """Put a barrier between contractions or scatters and conversions of narrow types.

    Assumes what pcp-legalize leaves. `of` is `contractions`, which get what is narrow,
    or was, in the type of their result and behind a barrier, as the result is, and
    reductions of what was converted; or `scatters`, whose converted updates get one.
    IREE does not fuse across a barrier: what is converted is written to memory first.
    The numbers are the same. Before, and after
    `pcp-isolate-conversions{of=contractions}`:

        %0 = stablehlo.dot_general %x, %y, ... -> tensor<4x2xf32>
        %1 = stablehlo.convert %0 : (tensor<4x2xf32>) -> tensor<4x2xbf16>

        %a = stablehlo.convert %x : (tensor<4x8xbf16>) -> tensor<4x8xf32>
        %b = stablehlo.convert %y : (tensor<8x2xbf16>) -> tensor<8x2xf32>
        %c = stablehlo.optimization_barrier %a : tensor<4x8xf32>
        %d = stablehlo.optimization_barrier %b : tensor<8x2xf32>
        %0 = stablehlo.dot_general %c, %d, ... -> tensor<4x2xf32>
        %e = stablehlo.optimization_barrier %0 : tensor<4x2xf32>
        %1 = stablehlo.convert %e : (tensor<4x2xf32>) -> tensor<4x2xbf16>
    """

    name = "pcp-isolate-conversions"
    of: str = "contractions"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        if self.of not in KINDS:
            raise PassError(
                f"{self.name}: of={self.of} is not one of {', '.join(KINDS)}."
                + nearest(self.of, KINDS)
            )
        for op in operations(module):
            if op.name in KINDS[self.of]:
                _isolate(op)


def _isolate(op: ir.Operation) -> None:
    if op.name == "stablehlo.scatter":  # operands, indices, as many updates
        _hold_converted(op, range(len(op.results) + 1, len(op.operands)), _any)
    elif op.name == "stablehlo.reduce":
        _hold_converted(op, range(len(op.results)), is_narrow)
    else:
        _contraction(op)


def _any(element: ir.Type) -> bool:
    """Integers too: a scatter takes no conversion at all."""
    return True


def _contraction(op: ir.Operation) -> None:
    narrow = [x for x in op.operands if _is_read_narrow(x)]
    if not narrow:
        return
    with before(op):
        for i, operand in enumerate(list(op.operands)):
            if operand in narrow:
                wide = hlo.convert(operand, hlo.element_type(op.results[0]))
                op.operands[i] = hlo.optimization_barrier(wide)
    result = op.results[0]
    with ir.InsertionPoint.after(op), op.location:
        held = hlo.optimization_barrier(result)
    result.replace_all_uses_except(held, held.owner.operation)


def _is_read_narrow(x: ir.Value) -> bool:
    return is_narrow(hlo.element_type(x)) or comes_converted(x, FUSED)


def _hold_converted(
    op: ir.Operation, which: Iterable[int], taken: Callable[[ir.Type], bool]
) -> None:
    with before(op):
        for i in which:
            if comes_converted(op.operands[i], FUSED, taken):
                op.operands[i] = hlo.optimization_barrier(op.operands[i])
