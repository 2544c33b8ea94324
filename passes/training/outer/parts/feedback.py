"""Error feedback: what a code loses is kept, and sent later.

    E <- ρ E + x          send C(E)          E <- E - C(E)

E is private state. It changes with the round it belongs to: if that is done again, or
never counts, neither does what it would have sent.
"""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.outer.parts import coded
from pcp.passes.training.outer.parts.codes import Code
from pcp.passes.training.outer.parts.tiles import Tiles
from pcp.passes.training.outer.rule import Slot

Value = ir.Value
ERROR = Slot("error", private=True)


def mean(
    tensors: Sequence[Value],
    errors: Sequence[Value],
    tokens: Value,
    decay: float,
    ways: Sequence[tuple[Tiles, Code]],
) -> tuple[list[Value], list[Value]]:
    """The workers' mean of what is sent, and the new errors; of the tensors' types."""
    held = [hlo.add(scale(e, decay), x) for e, x in zip(errors, tensors, strict=True)]
    single = [hlo.convert(x, ir.F32Type.get()) for x in held]
    pairs = zip(single, ways, strict=True)
    parts = [coded.part(tiles.split(x), code) for x, (tiles, code) in pairs]
    means, own = coded.mean(parts, tokens)
    whole = [
        [
            hlo.convert(tiles.join(v), hlo.element_type(x))
            for v, x, (tiles, _) in zip(values, held, ways, strict=True)
        ]
        for values in (means, own)
    ]
    return whole[0], [hlo.subtract(x, y) for x, y in zip(held, whole[1], strict=True)]
