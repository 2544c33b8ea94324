"""dot_general in full: any batch, contracting and free dimensions in any order.

A product is accumulated in the type of g, or in f32 if that is narrower (`values`),
and rounded once, at the end, to the operand's type. An `algorithm` says itself what
it accumulates in.
"""

from dataclasses import dataclass

from pcp.autodiff.core.kinds import Bilinear, Site
from pcp.autodiff.core.values import wide
from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo

Value = ir.Value


@dataclass(frozen=True)
class _Sides:
    """Dimension numbers by operand: 0 is lhs, 1 is rhs."""

    batch: tuple[list[int], list[int]]
    contract: tuple[list[int], list[int]]
    free: tuple[list[int], list[int]]

    @classmethod
    def of(cls, at: Site) -> "_Sides":
        n = stablehlo.DotDimensionNumbers(at.attribute("dot_dimension_numbers"))
        batch = list(n.lhs_batching_dimensions), list(n.rhs_batching_dimensions)
        contract = (
            list(n.lhs_contracting_dimensions),
            list(n.rhs_contracting_dimensions),
        )
        left, right = (
            [
                d
                for d in range(len(hlo.shape_of(at[i])))
                if d not in {*batch[i], *contract[i]}
            ]
            for i in (0, 1)
        )
        return cls(batch, contract, (left, right))


def _dot(mine: int):
    """The cotangent of operand `mine`: g contracted with the other's free dims.

    g has dimensions (batch, free of lhs, free of rhs). g times the other operand
    has (batch, free of mine, contracting of the other in *ascending* order); the
    other times g has the last two groups swapped. Contracting dimensions of both
    sides are paired by position, not by order, so the product may need a transpose
    to be an operand again: the order that needs none is taken, if there is one.
    """

    def transpose(at: Site, g: Value) -> Value:
        other, sides = 1 - mine, _Sides.of(at)
        if not hlo.size(g) or not hlo.size(at[mine]):
            return hlo.zeros(at[mine].type)
        back = sorted(sides.contract[other])
        paired = [sides.contract[mine][sides.contract[other].index(d)] for d in back]
        g_first = [*sides.batch[mine], *sides.free[mine], *paired]
        g_last = [*sides.batch[mine], *paired, *sides.free[mine]]
        swap = g_last == sorted(g_last)
        product = _product(at, g, mine, sides, swap)
        order = g_last if swap else g_first
        product = hlo.transpose(product, [order.index(d) for d in range(len(order))])
        return hlo.convert(product, hlo.element_type(at[mine]))

    return transpose


def _product(at: Site, g: Value, mine: int, sides: _Sides, swap: bool) -> Value:
    """g · other over the other's free dimensions, or other · g if `swap`."""
    other = 1 - mine
    count = len(sides.batch[0])
    first = count + (len(sides.free[0]) if mine == 0 else 0)
    theirs = list(range(first, first + len(sides.free[other])))
    operands = (g, hlo.convert(at[other], hlo.element_type(g)))
    batch = (list(range(count)), sides.batch[other])
    contract = (theirs, sides.free[other])
    places = (mine, other)
    if swap:
        operands, batch = (operands[1], operands[0]), (batch[1], batch[0])
        contract, places = (contract[1], contract[0]), (other, mine)
    return hlo.dot_general(
        *operands,
        batch=batch,
        contract=contract,
        element=None if at.attribute("algorithm") else wide(hlo.element_type(g)),
        precision=_precision(at, places),
        algorithm=at.attribute("algorithm"),
    )


def _precision(at: Site, places: tuple[int, int]) -> ir.Attribute | None:
    """The primal's precision of each place; g stands in that of what it replaces."""
    given = at.attribute("precision_config")
    if given is None:
        return None
    pair = list(ir.ArrayAttr(given))
    return ir.ArrayAttr.get([pair[place] for place in places])


RULES = {"dot_general": Bilinear(_dot(0), _dot(1))}
