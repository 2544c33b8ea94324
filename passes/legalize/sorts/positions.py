"""Positions that go along with a sort."""

from collections.abc import Sequence

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis.ranges import limits
from pcp.passes.core.rewriting import defining, integer, ints

Value = ir.Value


def index_type(count: int) -> ir.Type:
    """The integer that counts so many."""
    return ir.IntegerType.get_signless(64 if count >= 2**31 else 32)


def position_in(operands: Sequence[Value], dimension: int) -> int | None:
    """The operand that counts the positions already, as in an argsort.

    IREE does not compile a sort that has two of them.
    """
    for i, operand in enumerate(operands):
        if _counts(operand, dimension) and _counts_all(operand, dimension):
            return i
    return None


def _counts(value: Value, dimension: int) -> bool:
    """Whether it is an iota along the dimension; of a batch, one that is broadcast."""
    while (op := defining(value, "broadcast_in_dim")) is not None:
        dims = ints(op, "broadcast_dimensions")
        if dimension not in dims:
            return False
        value, dimension = op.operands[0], dims.index(dimension)
    op = defining(value, "iota")
    return op is not None and integer(op, "iota_dimension") == dimension


def _counts_all(positions: Value, dimension: int) -> bool:
    """Whether the element type holds every position apart."""
    if not isinstance(hlo.element_type(positions), ir.IntegerType):
        return False
    return hlo.shape_of(positions)[dimension] - 1 <= limits(positions.type)[1]
