"""dot_general in full: any batch, contracting and free dimensions in any order."""

from pcp.autodiff.kinds import Bilinear, Site
from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo

Value = ir.Value


def _dot(operand: int):
    """The cotangent of one operand: contract g with the other over its free dims.

    g has dimensions (batch, free of lhs, free of rhs). The product with the other
    operand has (batch, free of mine, contracting of the other *ascending*), which
    is then permuted back: the contracting dimensions of both sides are paired by
    position, not by order.

    The product has the operand's element type (a bf16 operand of an f32 result
    is accumulated as the primal's result type says, then rounded once).
    """

    def transpose(at: Site, g: Value) -> Value:
        mine, other = operand, 1 - operand
        numbers = stablehlo.DotDimensionNumbers(at.attribute("dot_dimension_numbers"))
        batch = (numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions)
        contract = (
            numbers.lhs_contracting_dimensions,
            numbers.rhs_contracting_dimensions,
        )
        free = [
            [
                d
                for d in range(len(hlo.shape_of(at[i])))
                if d not in {*batch[i], *contract[i]}
            ]
            for i in (0, 1)
        ]
        first = len(batch[0]) + (len(free[0]) if mine == 0 else 0)
        theirs = list(range(first, first + len(free[other])))
        product = hlo.dot_general(
            g,
            hlo.convert(at[other], hlo.element_type(g)),
            batch=(list(range(len(batch[0]))), batch[other]),
            contract=(theirs, free[other]),
            precision=_swapped(at.attribute("precision_config"), mine),
            algorithm=at.attribute("algorithm"),
        )
        paired = [
            contract[mine][list(contract[other]).index(d)]
            for d in sorted(contract[other])
        ]
        order = [*batch[mine], *free[mine], *paired]
        back = [order.index(d) for d in range(len(order))]
        return hlo.convert(hlo.transpose(product, back), hlo.element_type(at[mine]))

    return transpose


def _swapped(precision: ir.Attribute | None, mine: int) -> ir.Attribute | None:
    """The precision of (g, other): the primal's, each at its own operand."""
    if precision is None:
        return None
    pair = list(ir.ArrayAttr(precision))
    return ir.ArrayAttr.get([pair[mine], pair[1 - mine]])


RULES = {
    "dot_general": Bilinear(_dot(0), _dot(1)),
}
