"""Cotangents while they are being gathered: symbolic zeros and fan-out sums.

A value without an entry has a zero cotangent; no tensor is made for it. A value
used n times gets n terms, added once, where its producer is visited.
"""

from pcp.autodiff.core.values import splat_of
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.errors import IRError

Value = ir.Value


class Cotangents:
    """Terms of each value's cotangent, summed when they are taken."""

    def __init__(self) -> None:
        self._terms: dict[Value, list[Value]] = {}

    def __contains__(self, value: Value) -> bool:
        return value in self._terms

    def add(self, value: Value, term: Value | None) -> None:
        """Add a term; None adds nothing."""
        if term is None:
            return
        if term.type != value.type:
            raise IRError(
                f"a cotangent of type {term.type} for a value of type {value.type}"
            )
        self._terms.setdefault(value, []).append(term)

    def take(self, value: Value) -> Value | None:
        """The sum of all terms, emitted at the current insertion point, or None."""
        terms = self._terms.pop(value, None)
        return total(terms) if terms else None


def total(terms: list[Value]) -> Value:
    """Their sum, left to right."""
    result = terms[0]
    for term in terms[1:]:
        result = _sum(result, term)
    return result


def _sum(one: Value, other: Value) -> Value:
    """Their sum; of a tensor that is zero but for a part, into that part alone.

    A layer of a loop has a part of the stacked parameters: adding the whole in each
    turn would cost turns times their size.
    """
    for whole, term in ((one, other), (other, one)):
        if (part := _part(term)) is not None:
            update, starts = part
            own = hlo.dynamic_slice(whole, starts, hlo.shape_of(update))
            return hlo.dynamic_update_slice(whole, hlo.add(own, update), starts)
    return hlo.add(one, other)


def _part(term: Value) -> tuple[Value, list[Value]] | None:
    """What is written into zeros, and where, if that is how a value is made."""
    if isinstance(term.owner, ir.Block):
        return None
    op = term.owner
    if op.name != "stablehlo.dynamic_update_slice" or splat_of(op.operands[0]) != 0:
        return None
    _, update, *starts = op.operands
    return update, starts


def materialize(cotangent: Value | None, primal: Value) -> Value:
    """The cotangent, or zeros of the primal's type: only at a boundary."""
    return hlo.zeros(primal.type) if cotangent is None else cotangent
