"""Contractions as a kernel sees them: a form, four extents, two operands."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo


@dataclass(frozen=True)
class Contraction:
    """`batch` products of `rows x depth` with `depth x columns`.

    `form` has a letter an operand: N as written in that line, T transposed. `batch` is
    0 where there is none. Operands that differ from it are reshaped to it.
    """

    form: str
    batch: int
    rows: int
    depth: int
    columns: int

    @property
    def size(self) -> int:
        """The multiplications."""
        return max(1, self.batch) * self.rows * self.depth * self.columns

    @property
    def left(self) -> list[int]:
        """The first operand's shape."""
        return self._shape(self.form[0] == "T", self.rows, self.depth)

    @property
    def right(self) -> list[int]:
        """The second operand's shape."""
        return self._shape(self.form[1] == "T", self.depth, self.columns)

    @property
    def result(self) -> list[int]:
        """The result's shape."""
        return self._shape(False, self.rows, self.columns)

    def _shape(self, flipped: bool, first: int, second: int) -> list[int]:
        return [self.batch] * bool(self.batch) + (
            [second, first] if flipped else [first, second]
        )


def contraction_of(op: ir.Operation) -> Contraction | None:
    """What a `dot_general` is, or None where only a transpose would make it one.

    Batch dims lead in both operands; the free dims of an operand stand together, and
    so do the contracted ones, in the same order in both.
    """
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = map(hlo.shape_of, op.operands)
    batch = list(range(len(numbers.lhs_batching_dimensions)))
    if list(numbers.lhs_batching_dimensions) != batch:
        return None
    if list(numbers.rhs_batching_dimensions) != batch:
        return None
    first = _place(len(left), len(batch), list(numbers.lhs_contracting_dimensions))
    second = _place(len(right), len(batch), list(numbers.rhs_contracting_dimensions))
    if first is None or second is None:
        return None
    depth = prod(left[d] for d in numbers.lhs_contracting_dimensions)
    count = prod(left[: len(batch)])
    rows, columns = (prod(x) // max(1, count * depth) for x in (left, right))
    form = ("T" if first == "front" else "N") + ("N" if second == "front" else "T")
    return Contraction(form, count if batch else 0, rows, depth, columns)


def is_f32(op: ir.Operation) -> bool:
    """Whether all of it is f32, computed as f32."""
    types = [hlo.element_type(value) for value in (*op.operands, op.result)]
    return all(isinstance(t, ir.F32Type) for t in types) and (
        "algorithm" not in op.attributes
    )


def _place(rank: int, batch: int, contracted: Sequence[int]) -> str | None:
    """Whether the contracted dims are the front or the back of what is no batch."""
    count = len(contracted)
    if contracted == list(range(rank - count, rank)):
        return "back"
    return "front" if contracted == list(range(batch, batch + count)) else None
