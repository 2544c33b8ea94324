"""Batches, rows and columns of what attention's kernels read and make."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.kernels.attention import Result
from pcp.passes.kernels.scores import Matrix
from pcp.passes.kernels.views import Steps, View, joined, step_of

LEVELS, ROWS, COLUMNS = 3, 3, 4
"""How many dimensions batches have; the labels of rows and columns behind theirs."""

Label = int
"""A dimension: of the batches, outermost first, ROWS or COLUMNS."""


@dataclass(frozen=True)
class Grid:
    """How many there are of each label, and how far apart they are in the pairs."""

    counts: tuple[int, ...]
    steps_: tuple[int, ...]

    @staticmethod
    def of(pairs: View, steps: Iterable[tuple[int, int]]) -> "Grid | None":
        """As few batches as the steps through the pairs allow; None if too many."""
        *batch, rows, columns = hlo.shape_of(pairs.base)
        square, whole = rows * columns, prod(batch) * rows * columns
        cuts = {square, whole}
        for count, first in steps:
            for cut in (first, first * count):
                if 1 < cut < square and cut != columns:
                    return None
                cuts |= {cut} if cut > square else set()
        ends = sorted(cuts)
        parts = []
        for low, high in pairwise(ends):
            if high % low:
                return None
            parts.append((high // low, low))
        if len(parts) > LEVELS:
            return None
        parts += [(1, whole)] * (LEVELS - len(parts))
        parts = [*reversed(parts), (rows, columns), (columns, 1)]
        return Grid(tuple(n for n, _ in parts), tuple(step for _, step in parts))

    @property
    def levels(self) -> list[Label]:
        """Of the batches."""
        return list(range(LEVELS))

    @property
    def by_row(self) -> list[Label]:
        """How what is one number a row lies."""
        return [*self.levels, ROWS]

    @property
    def everything(self) -> list[Label]:
        """As the pairs lie."""
        return [*self.levels, ROWS, COLUMNS]

    @property
    def parts(self) -> int:
        """How many batches there are."""
        return prod(self.counts[:LEVELS])

    def count(self, label: Label) -> int:
        """How many."""
        return self.counts[label]

    def steps(self, matrix: Matrix) -> list[int]:
        """How far apart neighbours lie in an operand, by label."""
        return [
            step_of(matrix.over, step) if n > 1 else 0
            for n, step in zip(self.counts, self.steps_, strict=True)
        ]

    def place(self, matrix: Matrix, across: Label) -> list[int]:
        """As a kernel takes it: the first element, batches and rows, or columns."""
        steps = self.steps(matrix)
        return [matrix.offset, *steps[:LEVELS], steps[across]]

    def order(self, like: Matrix, across: Label) -> list[Label]:
        """The dimensions of a result: as those of what it is like, heads together."""
        steps = self.steps(like)
        inner = [label for label in self.levels if 0 < steps[label] < steps[across]]
        inner.sort(key=lambda label: -steps[label])
        if not inner:  # a position's heads are read together
            inner = [label for label in self.levels if self.counts[label] > 1][-1:]
        outer = [label for label in self.levels if label not in inner]
        return [*outer, across, *inner]

    def made(self, order: Sequence[Label], width: int) -> list[int]:
        """The place of a result that lies in this order."""
        steps, step = [0] * (COLUMNS + 1), width
        for label in reversed(order):
            steps[label] = step
            step *= self.counts[label]
        across = ROWS if ROWS in order else COLUMNS
        return [0, *steps[:LEVELS], steps[across]]

    def _labels(self, steps: Steps) -> list[Label]:
        """A dimension's labels; of only one there may be none."""
        return [
            label
            for label, (n, step) in enumerate(
                zip(self.counts, self.steps_, strict=True)
            )
            if n > 1 and any(first <= step < first * many for many, first in steps)
        ]

    def sorted(
        self, value: ir.Value, dims: Sequence[Steps], order: Sequence[Label]
    ) -> ir.Value:
        """A value, whose dimensions lie so, with those of this order."""
        have = [label for steps in dims for label in self._of(steps)]
        shape = [self.counts[label] for label in have]
        want = [label for label in order if label in have]
        turned = hlo.transpose(
            hlo.reshape(value, shape), [have.index(label) for label in want]
        )
        return hlo.reshape(turned, [self.counts[label] for label in order])

    def _of(self, steps: Steps) -> list[Label]:
        """The labels of a dimension in its own order."""
        return [label for step in steps for label in self._labels((step,))]

    def turned(
        self, value: ir.Value, order: Sequence[Label | None], result: Result
    ) -> ir.Value:
        """What lies in this order (None: a head's width) as a result's op has it.

        What the op adds up over batches is added up.
        """
        want: list[Label | None] = []
        for steps in result.dims:
            want += [None] if steps is None else self._of(steps)
        have = [label for label in order if label is None or self.counts[label] > 1]
        sizes = [
            n
            for n, label in zip(hlo.shape_of(value), order, strict=True)
            if label is None or self.counts[label] > 1
        ]
        value = hlo.reshape(value, sizes)
        gone = [place for place, label in enumerate(have) if label not in want]
        if gone:
            value = hlo.reduce_sum(value, gone)
        have = [label for label in have if label in want]
        value = hlo.transpose(value, [have.index(label) for label in want])
        shape = list(hlo.shape_of(result.op.result))
        return (
            value if list(hlo.shape_of(value)) == shape else hlo.reshape(value, shape)
        )

    # --- operands that lie otherwise

    def is_plain(self, matrix: Matrix) -> bool:
        """Whether the labels that a value differs along are all that it has."""
        steps = self.steps(matrix)
        had = [(s, self.counts[label]) for label, s in enumerate(steps) if s]
        had = sorted([*had, (matrix.apart, matrix.width)])
        size = 1
        for step, count in had:
            if step != size:
                return False
            size *= count
        return matrix.offset == 0 and size == hlo.size(matrix.base)

    def straight(self, matrix: Matrix, across: Label) -> Matrix:
        """A plain operand with its width innermost."""
        steps = [*self.steps(matrix), matrix.apart]
        counts = [*self.counts, matrix.width]
        have = sorted((x for x, s in enumerate(steps) if s), key=lambda x: -steps[x])
        order = [x for x in (*self.levels[:-1], across, self.levels[-1]) if x in have]
        value = hlo.reshape(matrix.base, [counts[x] for x in have])
        width = len(counts) - 1
        value = hlo.transpose(value, [have.index(x) for x in (*order, width)])
        over, step = [], matrix.width
        for label in reversed(order):
            over.append((counts[label], self.steps_[label], step))
            step *= counts[label]
        return Matrix(value, 0, joined(over), matrix.width)

    def spread(
        self, value: ir.Value, matrix: Matrix, order: Sequence[Label]
    ) -> ir.Value:
        """A plain value, repeated along what it does not differ along."""
        steps = self.steps(matrix)
        have = sorted(
            (label for label in order if steps[label]), key=lambda x: -steps[x]
        )
        value = hlo.reshape(value, [self.counts[label] for label in have])
        places = sorted(have)
        value = hlo.transpose(value, [have.index(label) for label in places])
        shape = [self.counts[label] for label in order]
        return hlo.broadcast_in_dim(value, shape, [order.index(x) for x in places])

    def plain(self, value: ir.Value, order: Sequence[Label]) -> Matrix:
        """A value whose dimensions are these labels."""
        steps, step = [], 1
        for label in reversed(order):
            steps.append((self.counts[label], self.steps_[label], step))
            step *= self.counts[label]
        return Matrix(value, 0, joined(steps))
