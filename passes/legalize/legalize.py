"""pcp-legalize: programs that IREE compiles and runs without touching other memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pcp.dialect import loading
from pcp.dialect.bindings import ir
from pcp.passes.core.base import CppPasses, Pass
from pcp.passes.core.elementwise import inline
from pcp.passes.core.host_calls import ADVICE, is_host_call
from pcp.passes.core.rewriting import (
    before,
    functions,
    operations,
    refuse,
    replace,
    sweep,
)
from pcp.passes.core.stops import forget_derivatives
from pcp.passes.core.walk import CONTROL_FLOW
from pcp.passes.legalize import legalize_complex as complex_
from pcp.passes.legalize import legalize_complex_functions as of_complex
from pcp.passes.legalize import legalize_conversions as conversions
from pcp.passes.legalize import legalize_fourier as fourier
from pcp.passes.legalize import legalize_functions as special
from pcp.passes.legalize import legalize_indexing as indexing
from pcp.passes.legalize import legalize_linear_algebra as linear_algebra
from pcp.passes.legalize import legalize_loops as loops
from pcp.passes.legalize import legalize_narrow as narrow
from pcp.passes.legalize import legalize_norms as norms
from pcp.passes.legalize import legalize_pads as pads
from pcp.passes.legalize import legalize_reductions as reductions
from pcp.passes.legalize import legalize_scatters as scatters
from pcp.passes.legalize import legalize_trigonometry as trigonometry
from pcp.passes.legalize import legalize_unsigned as unsigned
from pcp.passes.legalize import legalize_windows as windows
from pcp.passes.legalize.sorts import network, stable, top_k

Values = Sequence[ir.Value]


@dataclass(frozen=True)
class Legalize(Pass):
    """Rewrite what IREE rejects, or compiles into reads and writes out of bounds.

    Assumes static shapes (see pcp-import). Leaves StableHLO that IREE compiles:

    - `gather` clamps its indices and `scatter` drops the windows that do not fit,
      unless ranges.py proves that all of them do; `scatter` moves whole rows;
    - `select_and_scatter` with overlapping or padded windows is unfolded;
    - `batch_norm_*` and `map` are written out;
    - `cholesky` and `triangular_solve` become loops over blocks;
    - a `top_k` of few among many takes the largest so often, in a loop;
    - a `sort` of many elements becomes a network of compared pairs, in a loop;
    - another stable `sort` gets the position as a last key: IREE's is not stable;
    - `power`, `atan2` and `cbrt` give what IEEE 754 says for negative bases, zeros
      and infinities;
    - `sine`, `cosine`, `tan`, `power`, `atan2` and `cbrt` of up to 32 bits are computed
      by integers and polynomials, and CHLO's `sinh`, `cosh`, `erf` and `erf_inv` by
      better formulas: docs/accuracy.md (what of f64 IREE lacks, pcp-expand-doubles
      writes out);
    - `abs`, `divide`, `log`, `log_plus_one`, `logistic`, `power`, `exponential`,
      `exponential_minus_one`, `sine`, `cosine`, `tan`, `tanh`, `sqrt` and `rsqrt` of
      complex numbers are written out by parts, so that none overflows early;
    - `convert` of floats to integers saturates and makes 0 of NaN;
    - `fft` goes dim by dim, lengths other than powers of two by a matrix product;
    - complex numbers are padded by parts, and convolved so;
    - 64-bit elements are padded with zeros, and other fills chosen behind it;
    - a convolution with one place along a dim leaves out what no window covers;
    - unsigned integers are reversed and combined in windows as signed ones, and a
      reversal of a strided slice is a slice of a reversal;
    - a slice that is sorted is copied, as is a table of which neighbours lie apart;
    - whether a number is its own floor is asked of its nearest whole number;
    - a product or convolution over an empty dimension is zeros;
    - the negation of a summand moves behind the sum;
    - a sum of all elements goes dim by dim where rows or columns are spread in it;
    - a body of `while` reads all that it carries, and what a loop or a branch may give
      back as it came is copied in front of it, as are what an update writes over while
      a loop, a branch or an exchange reads it, and positions that a loop or a branch
      reads beside the ops around it;
    - beside loops and branches, what is made of constants and positions alone by more
      than a thousand ops, each reader's counted anew, stands behind a barrier;
    - floats narrower than f32 are contracted and added up in f32, and rounded once;
    - `pcp.stop_gradient`, which has done its work, gives way to its operand, and
      `pcp.custom_vjp`, `pcp.custom_jvp` and `pcp.without_derivative` go;
    - no CHLO is left.

    What has no such form (`custom_call`, `collective_broadcast`) is an error at its
    location.

        %0 = "stablehlo.gather"(%table, %tokens) ...
    becomes
        %i = stablehlo.clamp %zero, %tokens, %last
        %0 = "stablehlo.gather"(%table, %i) ...
    """

    name = "pcp-legalize"

    def run(self, module: ir.Module) -> None:
        """Rewrite in place, or raise `PassError` at an op that has no legal form."""
        _refuse_others(module)
        forget_derivatives(module)
        for op in _inside_out(module):
            _legalize(op, BEFORE)
        if any(op.name.startswith("chlo.") for op in operations(module)):
            CppPasses("func.func(chlo-legalize-to-stablehlo)").run(module)
        for rules in (FIRST, RULES, LAST, COPIES):
            for op in _inside_out(module):
                _legalize(op, rules)
        branches = any(op.name in CONTROL_FLOW for op in operations(module))
        for function in functions(module):
            loops.own_positions(function)
            if branches:
                loops.hold_made_of_constants(function)
            sweep(function)


def _refuse_others(module: ir.Module) -> None:
    """An op of a user's own dialect was to be StableHLO by now."""
    for op in operations(module) if loading.registered() else ():
        if op.name.partition(".")[0] in loading.registered():
            refuse(
                op,
                "no pass has made StableHLO of it; name one in `lowering` of the "
                "extension (docs/extending.md)",
            )


def _inside_out(module: ir.Module) -> list[ir.Operation]:
    """Every op, those of a body before the op that a rule may replace with it."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.POST_ORDER)
    return found[:-1]


Rule = Callable[[ir.Operation], Values | None]
Rules = dict[str, Rule]


def _legalize(op: ir.Operation, rules: Rules) -> None:
    if (reason := REFUSED.get(op.name)) is not None:
        if op.name == "stablehlo.custom_call" and is_host_call(op):
            reason = ADVICE
        refuse(op, reason)
    if (rule := rules.get(op.name)) is None:
        return
    with before(op):
        values = rule(op)
    if values is not None:
        replace(op, values)


def _map(op: ir.Operation) -> Values:
    return inline(op.regions[0].blocks[0], list(op.operands))


def _first(*rules: Rule) -> Rule:
    """The first rule that does not leave the op."""

    def rule(op: ir.Operation) -> Values | None:
        return next(filter(None, (each(op) for each in rules)), None)

    return rule


# In place of what CHLO makes of them.
BEFORE: Rules = {
    "chlo.cosh": special.cosh,
    "chlo.erf": special.erf,
    "chlo.erf_inv": special.erf_inv,
    "chlo.sinh": special.sinh,
    "chlo.top_k": top_k.few_of_many,
}

# What is made of these, complex quotients among it, is legalised, too.
FIRST: Rules = {
    "stablehlo.cholesky": linear_algebra.cholesky,
    "stablehlo.convolution": _first(reductions.of_nothing, windows.crop),
    "stablehlo.dot": reductions.of_nothing,
    "stablehlo.dot_general": reductions.of_nothing,
    "stablehlo.sort": network.sort,
    "stablehlo.triangular_solve": linear_algebra.triangular_solve,
}

RULES: Rules = {
    "stablehlo.abs": of_complex.absolute,
    "stablehlo.atan2": special.atan2,
    "stablehlo.batch_norm_grad": norms.gradient,
    "stablehlo.batch_norm_inference": norms.inference,
    "stablehlo.batch_norm_training": norms.training,
    "stablehlo.cbrt": special.cbrt,
    "stablehlo.compare": special.compare,
    "stablehlo.convert": conversions.convert,
    "stablehlo.convolution": complex_.convolution,
    "stablehlo.cosine": _first(of_complex.cosine, trigonometry.cosine),
    "stablehlo.divide": of_complex.divide,
    "stablehlo.dynamic_slice": indexing.dynamic_slice,
    "stablehlo.dynamic_update_slice": indexing.dynamic_update_slice,
    "stablehlo.exponential": of_complex.exponential,
    "stablehlo.exponential_minus_one": of_complex.exponential_minus_one,
    "stablehlo.fft": fourier.fft,
    "stablehlo.gather": indexing.gather,
    "stablehlo.log": of_complex.log,
    "stablehlo.log_plus_one": of_complex.log_plus_one,
    "stablehlo.logistic": of_complex.logistic,
    "stablehlo.map": _map,
    "stablehlo.pad": pads.pad,
    "stablehlo.power": _first(of_complex.power, special.power),
    "stablehlo.reduce": _first(reductions.negated_sum, reductions.step_by_step),
    "stablehlo.reduce_window": _first(pads.reduce_window, unsigned.reduce_window),
    "stablehlo.reverse": unsigned.reverse,
    "stablehlo.rsqrt": of_complex.rsqrt,
    "stablehlo.scatter": scatters.scatter,
    "stablehlo.select_and_scatter": windows.select_and_scatter,
    "stablehlo.sine": _first(of_complex.sine, trigonometry.sine),
    "stablehlo.sort": stable.stable,
    "stablehlo.sqrt": of_complex.sqrt,
    "stablehlo.tan": _first(of_complex.tan, trigonometry.tan),
    "stablehlo.tanh": of_complex.tanh,
}

# For what the others make, too.
LAST: Rules = {
    "stablehlo.case": _first(loops.own_branches, loops.own_handed_on),
    "stablehlo.constant": complex_.constant,
    "stablehlo.convert": narrow.convert,
    "stablehlo.convolution": narrow.convolution,
    "stablehlo.dot": narrow.contraction,
    "stablehlo.dot_general": narrow.contraction,
    "stablehlo.dynamic_update_slice": _first(scatters.separate, loops.own_updated),
    "stablehlo.gather": indexing.hold_strided,
    "stablehlo.if": _first(loops.own_branches, loops.own_handed_on),
    "stablehlo.imag": complex_.imag,
    "stablehlo.real": complex_.real,
    "stablehlo.reduce": narrow.reduction,
    "stablehlo.reduce_window": narrow.reduction,
    "stablehlo.scatter": loops.own_updated,
    "stablehlo.sort": _first(indexing.hold_slices, loops.own_updated),
    "stablehlo.while": _first(
        loops.own_carries, loops.own_handed_on, loops.read_carries
    ),
}

# Constants that copies for loops bring in.
COPIES: Rules = {"stablehlo.constant": complex_.constant}

REFUSED: dict[str, str] = {
    "stablehlo.collective_broadcast": "IREE rejects it; write pcp.broadcast",
    "stablehlo.custom_call": "IREE cannot call it; write it in StableHLO ops",
}
