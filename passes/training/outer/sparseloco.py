"""SparseLoCo: the largest of each tile, in two bits (arXiv 2508.15706).

    E <- β E + Δ          send C(E)          E <- E - C(E)
    θ <- θ - α mean C(E)

C keeps the k numbers of largest magnitude in each 4096: of matrices in tiles of
64 x 64, of vectors in pieces. The error takes the place of an outer momentum.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.outer.diloco import less, moved
from pcp.passes.training.outer.parts import feedback
from pcp.passes.training.outer.parts.codes import Plain, TopK, TwoBits
from pcp.passes.training.outer.parts.tiles import Tiles, squares
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Slot, Tensors
from pcp.passes.training.outer.spec import SparseLoCo

SIDE, PIECE = 64, 4096


def slots(spec: SparseLoCo) -> Sequence[Slot]:
    """The error."""
    return (feedback.ERROR,)


def step(spec: SparseLoCo, now: OuterRound) -> tuple[list[ir.Value], Tensors]:
    """New parameters and errors."""
    deltas = moved(now)
    tiles = [squares(hlo.shape_of(x), SIDE, PIECE) for x in deltas]
    ways = [(t, _code(spec, t)) for t in tiles]
    errors = now.state[feedback.ERROR.name]
    means, left = feedback.mean(deltas, errors, now.tokens, spec.beta, ways)
    pairs = zip(now.anchors, means, strict=True)
    new = [less(p, scale(d, spec.lr)) for p, d in pairs]
    return new, {feedback.ERROR.name: left}


def _code(spec: SparseLoCo, tiles: Tiles) -> TopK:
    """k of 4096, and as many of a smaller tile."""
    k = min(tiles.columns, -(-spec.k * tiles.columns // PIECE))
    return TopK(k, TwoBits() if spec.bits == 2 else Plain())


RULE = OuterRule(step=step, state=slots)
