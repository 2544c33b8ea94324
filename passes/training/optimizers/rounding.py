"""Updated parameters in their own type: to the nearest number, or at random.

Rounded to the nearest, an update below half of a last place is lost for ever; rounded
up as often as it is near to the upper neighbour, it is kept on average
(arXiv:2010.06192). Bits are those of threefry, by the step and the parameter, so that
members that update the same numbers round them alike, and a replayed step too.
"""

from collections.abc import Callable

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.training.initialize import Key, random_words

Value = ir.Value

Rounding = Callable[[int, Value, ir.Type], Value]
"""Parameter i, updated in its math type, in an element type."""

PURPOSE = 0x726E6421
"""The high word of the key: bits for rounding, and for nothing else."""
LOST = 0xFFFF
"""The bits of an f32 that bf16 has not."""


def nearest(_: int, x: Value, element: ir.Type) -> Value:
    """To the nearest, ties to even."""
    return hlo.convert(x, element)


def stochastic(step: Value) -> Rounding:
    """Up or down at random, for the step of that number (rank-0 i32)."""

    def rounded(i: int, x: Value, element: ir.Type) -> Value:
        if not isinstance(element, ir.BF16Type):
            return hlo.convert(x, element)
        key = Key(step, hlo.constant_like(step, PURPOSE))
        word, _ = random_words(hlo.shape_of(x), key, hlo.constant_like(step, i))
        return hlo.convert(_dropped(x, word), element)

    return rounded


def _dropped(x: Value, word: Value) -> Value:
    """x plus less than a last place of bf16, cut off; what is not finite stays."""
    bits = hlo.bitcast_convert(x, word.type)
    low = hlo.and_(word, hlo.constant_like(word, LOST))
    cut = hlo.and_(hlo.add(bits, low), hlo.constant_like(word, ~LOST))
    finite = hlo.op(
        "is_finite", [x], [hlo.like(x, element=ir.IntegerType.get_signless(1))]
    ).result
    return hlo.select(finite, hlo.bitcast_convert(cut, x.type), x)
