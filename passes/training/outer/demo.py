"""DeMo: in every step the strongest frequencies of a momentum (arXiv 2411.19870).

    δ <- β δ + g          q = top-k of DCT(δ), tile by tile          δ <- δ - IDCT(q)
    what is applied: sign(IDCT(Σ_m t_m q_m / Σ_m t_m))

Tiles are 64 x 64 of matrices and pieces of 64 of vectors. δ is private, the only
state; the inner optimizer that fits is `sgd`, whose weight decay adds to the sign.
(The paper multiplies g by the learning rate first, which the sign does not see while
the rate is constant.)
"""

from collections.abc import Mapping, Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale, widen
from pcp.passes.training.outer.parts import coded
from pcp.passes.training.outer.parts.codes import Plain, TopK
from pcp.passes.training.outer.parts.tiles import Tiles, squares
from pcp.passes.training.outer.rule import OuterRule, Slot, Tensors, Values
from pcp.passes.training.outer.spec import DeMo
from pcp.training_plan import EveryStep

Value = ir.Value
SIDE = 64
RESIDUE = Slot("residue", private=True)


def slots(spec: DeMo) -> Sequence[Slot]:
    """δ."""
    return (RESIDUE,)


def every_step(
    spec: DeMo, gradients: Values, state: Tensors, tokens: Value
) -> tuple[list[Value], Mapping[str, Values]]:
    """The signs to apply, and what was not sent."""
    kept = state[RESIDUE.name]
    held = [
        hlo.add(scale(r, spec.beta), widen(g))
        for r, g in zip(kept, gradients, strict=True)
    ]
    tiles = [squares(hlo.shape_of(x), SIDE, SIDE) for x in held]
    parts = [_part(spec, t, x) for t, x in zip(tiles, held, strict=True)]
    means, own = coded.mean(parts, tokens)
    sent = [_back(t, q, x) for t, q, x in zip(tiles, own, held, strict=True)]
    moves = [_back(t, q, x) for t, q, x in zip(tiles, means, held, strict=True)]
    pairs = zip(moves, gradients, strict=True)
    signs = [hlo.convert(hlo.sign(m), hlo.element_type(g)) for m, g in pairs]
    left = [hlo.subtract(x, s) for x, s in zip(held, sent, strict=True)]
    return signs, {RESIDUE.name: left}


def _part(spec: DeMo, tiles: Tiles, x: Value) -> coded.CodedPart:
    single = hlo.convert(x, ir.F32Type.get())
    frequencies = tiles.cosines(tiles.split(single))
    return coded.part(frequencies, TopK(min(spec.k, tiles.columns), Plain()))


def _back(tiles: Tiles, frequencies: Value, like: Value) -> Value:
    x = tiles.join(tiles.cosines(frequencies, back=True))
    return hlo.convert(x, hlo.element_type(like))


RULE = OuterRule(lambda spec: EveryStep(), every_step=every_step, state=slots)
