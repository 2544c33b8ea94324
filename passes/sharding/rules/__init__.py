"""The factor rule of every op, by name; a file a chapter of the specification.

`rule_of(op)` is None for an op that can only run whole: random bits, a custom call for
which a user wrote no rule, anything unknown. Such an op is always correct on replicated
operands.

Control flow has no rule: its values hang together by `flow`.
"""

from collections.abc import Callable

from pcp.dialect.bindings import ir
from pcp.errors import ConfigError
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.sharding.factors import FactorRule
from pcp.passes.sharding.manual import is_manual
from pcp.passes.sharding.rules import (
    contractions,
    elementwise,
    indexing,
    linear_algebra,
    movement,
    normalization,
    reductions,
    reshapes,
    windows,
    written,
)
from pcp.passes.sharding.rules.shapes import is_static


def rule_of(op: ir.Operation) -> FactorRule | None:
    """How the op's tensors hang together, or None: it runs whole."""
    if is_manual(op) or not all(map(is_static, (*op.operands, *op.results))):
        return None
    build = RULES.get(op.name, written.written_rule)
    return build(op)


def register(name: str, rule: written.Written) -> None:
    """Use a user's rule for ops of this name; `ConfigError` where there is one."""
    if name in RULES:
        raise ConfigError(f"{name} has a sharding rule already")
    written.register(name, rule)


_CHLO_ELEMENTWISE = (
    "acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc "
    "is_inf is_neg_inf is_pos_inf lgamma next_after polygamma sinh square tan zeta"
).split()

RULES: dict[str, Callable[[ir.Operation], FactorRule | None]] = {
    **dict.fromkeys(ELEMENTWISE, elementwise.elementwise),
    **dict.fromkeys(
        (f"chlo.{name}" for name in _CHLO_ELEMENTWISE), elementwise.elementwise
    ),
    "arith.constant": elementwise.source,
    "chlo.top_k": linear_algebra.top_k,
    "pcp.all_reduce": elementwise.elementwise,  # with members of another mesh
    "pcp.barrier_prop": elementwise.elementwise,
    "pcp.broadcast": elementwise.elementwise,
    "pcp.constraint": elementwise.elementwise,
    "pcp.reshard": elementwise.elementwise,
    "pcp.stop_gradient": elementwise.elementwise,
    **dict.fromkeys(
        (f"stablehlo.batch_norm_{name}" for name in ("grad", "inference", "training")),
        normalization.batch_norm,
    ),
    "stablehlo.broadcast_in_dim": movement.broadcast_in_dim,
    "stablehlo.cholesky": linear_algebra.cholesky,
    "stablehlo.concatenate": movement.concatenate,
    "stablehlo.constant": elementwise.source,
    "stablehlo.convolution": windows.convolution,
    "stablehlo.dot": contractions.dot,
    "stablehlo.dot_general": contractions.dot_general,
    "stablehlo.dynamic_slice": movement.dynamic_slice,
    "stablehlo.dynamic_update_slice": movement.dynamic_update_slice,
    "stablehlo.fft": movement.fft,
    "stablehlo.gather": indexing.gather,
    "stablehlo.iota": elementwise.source,
    "stablehlo.map": elementwise.elementwise,
    "stablehlo.optimization_barrier": elementwise.pairs,
    "stablehlo.pad": movement.pad,
    "stablehlo.reduce": reductions.reduce,
    "stablehlo.reduce_window": windows.reduce_window,
    "stablehlo.reshape": reshapes.reshape,
    "stablehlo.reverse": movement.reverse,
    "stablehlo.scatter": indexing.scatter,
    "stablehlo.select_and_scatter": windows.select_and_scatter,
    "stablehlo.slice": movement.slice_,
    "stablehlo.sort": movement.sort,
    "stablehlo.transpose": movement.transpose,
    "stablehlo.triangular_solve": linear_algebra.triangular_solve,
}
