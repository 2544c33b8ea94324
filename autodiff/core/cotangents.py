"""Cotangents while they are being gathered: symbolic zeros and fan-out sums.

A value without an entry has a zero cotangent; no tensor is made for it. A value
used n times gets n terms, added once, where its producer is visited.
"""

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
        result = hlo.add(result, term)
    return result


def materialize(cotangent: Value | None, primal: Value) -> Value:
    """The cotangent, or zeros of the primal's type: only at a boundary."""
    return hlo.zeros(primal.type) if cotangent is None else cotangent
