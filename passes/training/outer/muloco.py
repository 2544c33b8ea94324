"""MuLoCo: DiLoCo for Muon inside (arXiv 2505.23725), with or without compression.

With `wire=2bit` deltas go through error feedback, E <- ρ E + Δ; send C(E);
E <- E - C(E), with two bits a number and four levels for each piece of 4096; then

    b <- β b + mean C(E)          θ <- θ - γ (mean C(E) + β b)

The inner optimizer is chosen beside it: `optimizer: muon`.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.outer import diloco
from pcp.passes.training.outer.parts import feedback
from pcp.passes.training.outer.parts.codes import TwoBits
from pcp.passes.training.outer.parts.tiles import pieces
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Slot, Tensors
from pcp.passes.training.outer.spec import MuLoCo

PIECE = 4096


def slots(spec: MuLoCo) -> Sequence[Slot]:
    """The momentum, and the error where there is a code."""
    return (*diloco.slots(spec), *([feedback.ERROR] if spec.wire == "2bit" else []))


def step(spec: MuLoCo, now: OuterRound) -> tuple[list[ir.Value], Tensors]:
    """New parameters, momenta and errors."""
    if spec.wire == "f32":
        return diloco.step(spec, now)
    deltas = diloco.moved(now)
    ways = [(pieces(hlo.shape_of(x), PIECE), TwoBits()) for x in deltas]
    errors = now.state[feedback.ERROR.name]
    means, left = feedback.mean(deltas, errors, now.tokens, spec.rho, ways)
    new, state = diloco.descend(spec, now, means)
    return new, state | {feedback.ERROR.name: left}


RULE = OuterRule(step=step, state=slots)
