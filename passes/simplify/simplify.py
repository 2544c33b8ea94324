"""pcp-simplify: fold what needs no running, and say the rest in fewer ops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.passes.core.base import CppPasses, Pass
from pcp.passes.core.rewriting import before, functions, is_unused, refuse, sweep
from pcp.passes.core.stops import needless
from pcp.passes.core.walk import CONTROL_FLOW
from pcp.passes.simplify import simplify_arithmetic as arithmetic
from pcp.passes.simplify import simplify_contractions as contractions
from pcp.passes.simplify import simplify_convolutions as convolutions
from pcp.passes.simplify import simplify_movement as movement
from pcp.passes.simplify.narrow_doubles import narrow_f64
from pcp.passes.simplify.simplify_options import Options

Values = Sequence[ir.Value]
Pattern = Callable[[ir.Operation, Options], Values | None]

# Far above what settles: patterns only ever shorten chains.
MOST_ROUNDS = 64


@dataclass(frozen=True)
class Simplify(Pass):
    """Fold constants, cancel what undoes itself, merge movement into fewer ops.

    Assumes static shapes (see pcp-import). The values stay the same bit for bit,
    with two exceptions by the operation's own freedom: `power(x, 2)` becomes
    `x * x`, which is rounded correctly where pow may not be, and a reduction of
    dims of size 1 leaves out its initial value. Payloads of NaN are not kept.

    More is allowed by:

    - `signed-zeros=false`: -0.0 and +0.0 count as equal, so `x + 0` is `x`, and
      sums of zero-padded parts become a concatenation;
    - `reassociate=true`: sums in another order, n equal terms as a product, a
      division by a constant as a product, `power(x, -0.5)` as rsqrt: results may
      differ in the last places;
    - `narrow-f64=true`: arithmetic in f64 of a function without f64 arguments
      and results is done in f32 (torch's layer norm computes its variance so).

        %0 = stablehlo.transpose %w, dims = [1, 0]
            : (tensor<4x8xf32>) -> tensor<8x4xf32>
        %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0]
            : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
    becomes
        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
            : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
    """

    name = "pcp-simplify"
    signed_zeros: bool = True
    reassociate: bool = False
    narrow_f64: bool = False

    def run(self, module: ir.Module) -> None:
        """Rewrite in place until nothing applies."""
        if self.narrow_f64:
            for function in functions(module):
                narrow_f64(function)
        CppPasses("cse").run(module)
        for function in functions(module):
            self._settle(function)
        CppPasses("cse").run(module)

    def _settle(self, function: ir.Operation) -> None:
        for _ in range(MOST_ROUNDS):
            changed = self._round(function)
            sweep(function)
            if not changed:
                return
        refuse(function, f"pcp-simplify does not settle in {MOST_ROUNDS} rounds")

    def _round(self, parent: ir.Operation) -> bool:
        """One pass over the blocks of functions, loops and branches, in order."""
        changed = False
        for region in parent.regions:
            for block in region.blocks:
                for view in list(block.operations):
                    op = view.operation
                    if op.name in CONTROL_FLOW:
                        changed |= self._round(op)
                    if not is_unused(op):
                        changed |= self._apply(op)
        return changed

    def _apply(self, op: ir.Operation) -> bool:
        for pattern in (*PATTERNS.get(op.name, ()), arithmetic.fold):
            with before(op):
                values = pattern(op, self)
            if values is None:
                continue
            for result, value in zip(op.results, values, strict=True):
                result.replace_all_uses_with(value)
            return True
        return False


# Ops whose regions are programs of their own, and not the body of a reduction.

PATTERNS: dict[str, tuple[Pattern, ...]] = {
    "pcp.stop_gradient": (lambda op, _: needless(op),),
    "stablehlo.abs": (arithmetic.absolute,),
    "stablehlo.add": (
        arithmetic.add_neutral,
        arithmetic.add_negated,
        contractions.add_padded,
    ),
    "stablehlo.and": (arithmetic.logical,),
    "stablehlo.broadcast_in_dim": (movement.broadcast,),
    "stablehlo.clamp": (arithmetic.clamp,),
    "stablehlo.compare": (arithmetic.compare,),
    "stablehlo.concatenate": (movement.concatenate,),
    "stablehlo.convert": (arithmetic.convert,),
    "stablehlo.convolution": (convolutions.convolution_of_transposes,),
    "stablehlo.divide": (arithmetic.divide,),
    "stablehlo.dot_general": (contractions.dot_of_transposes,),
    "stablehlo.gather": (contractions.gather_in_order,),
    "stablehlo.maximum": (arithmetic.extremum,),
    "stablehlo.minimum": (arithmetic.extremum,),
    "stablehlo.multiply": (arithmetic.multiply,),
    "stablehlo.negate": (arithmetic.twice,),
    "stablehlo.not": (arithmetic.twice, arithmetic.inverse_compare),
    "stablehlo.or": (arithmetic.logical,),
    "stablehlo.pad": (movement.pad,),
    "stablehlo.power": (arithmetic.power,),
    "stablehlo.reduce": (
        contractions.reduce_nothing,
        contractions.reduce_moved,
        contractions.reduce_broadcast,
        contractions.reduce_reduced,
    ),
    "stablehlo.reshape": (movement.reshape,),
    "stablehlo.reverse": (movement.reverse,),
    "stablehlo.scatter": (contractions.scatter_in_order,),
    "stablehlo.select": (arithmetic.select,),
    "stablehlo.slice": (movement.slice_,),
    "stablehlo.subtract": (arithmetic.subtract,),
    "stablehlo.transpose": (
        movement.transpose,
        contractions.transposed_dot,
        convolutions.transposed_convolution,
    ),
    "stablehlo.xor": (arithmetic.logical,),
}
