"""SNOO: DiLoCo's outer step of one worker alone (arXiv 2510.15830).

Δ = θ - θ_1          b <- β b + Δ          θ <- θ - γ (Δ + β b)

Without momentum it is Lookahead with α = γ. Nothing is exchanged: in a run with
several workers one trains and the others stand by.
"""

from pcp.dialect.bindings import ir
from pcp.passes.training.outer.diloco import descend, moved, slots
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Tensors
from pcp.passes.training.outer.spec import Snoo
from pcp.training_plan import Never


def step(spec: Snoo, now: OuterRound) -> tuple[list[ir.Value], Tensors]:
    """New parameters and momenta."""
    return descend(spec, now, moved(now))


RULE = OuterRule(
    lambda spec: Never(outer_step=True), step=step, state=slots, shards=True
)
