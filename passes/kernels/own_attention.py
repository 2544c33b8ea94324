"""Attention by the kernels of native/attention.c: no tensor of all pairs of positions.

| entry | pattern | reference | tolerance |
|---|---|---|---|
| `attention` | what `passes/kernels/attention.py` finds: 8 rows and 16 columns or \
more, a head's width a multiple of 16 and at most 128 | the ops | 2⁻¹⁸ of the largest |

`benchmarks/step.py` measures them in a whole program; docs/evidence.md has the gain.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import before, replace
from pcp.passes.kernels.attention import Attention, Matrix, Result, find
from pcp.passes.kernels.bring_forward import bring_forward
from pcp.passes.kernels.own_dispatch import Executables, KernelCall
from pcp.passes.kernels.own_places import COLUMNS, ROWS, Grid, Label
from pcp.passes.kernels.scores import Hidden
from pcp.passes.kernels.views import merged, view_of

SOURCE, ROOT = "attention", "stablehlo.exponential"
LEAST_ROWS, LEAST_COLUMNS, WIDTH, MOST_WIDTH = 8, 16, 16, 128
"""What a head's width is a multiple of, as the kernels need it; fewer rows or columns
have no gain."""

ADDED, IN_PLACE, LEVEL = 1, 2, 4
"""What the numbers of pairs are for, and that rows of minus infinities are as zeros."""


def attend(exponential: ir.Operation, executables: Executables) -> bool:
    """Put kernels in the place of the attention that reads these, if it is that."""
    found = find(exponential)
    if found is None or not _fits(found) or (grid := _grid(found)) is None:
        return False
    if (sites := _sites(found, exponential.block)) is None:
        return False
    calls = _Calls(found, grid, executables)
    if not calls.can_read:
        return False
    outcomes: list[tuple[ir.Operation, ir.Value]] = []
    with ir.InsertionPoint(sites[0]), exponential.location:
        y, sums, largest = calls.forward()
        outcomes += [(r.op, grid.turned(sums, grid.by_row, r)) for r in found.sums]
        if "y" in found.results:
            outcomes.append(calls.result("y", y))
        if (level := _level(found)) is not None:
            low = hlo.constant_like(largest, -np.inf)
            value = hlo.compare("EQ", largest, low, "FLOAT")
            outcomes.append((level.op, grid.turned(value, grid.by_row, level)))
    if found.d is not None:
        with ir.InsertionPoint(sites[1]), exponential.location:
            for name, value in zip(
                ("dq", "dk", "dv"), calls.slopes(largest), strict=True
            ):
                if name in found.results:
                    outcomes.append(calls.result(name, value))
    for op, value in outcomes:
        replace(op, [value])
        _straighten(value)
    return True


def _level(found: Attention) -> Result | None:
    """What tells rows of minus infinities."""
    level = found.scores.level
    return None if level is None else Result(level.op, level.dims)


def _fits(found: Attention) -> bool:
    return (
        found.rows >= LEAST_ROWS
        and found.columns >= LEAST_COLUMNS
        and found.width % WIDTH == 0
        and found.width <= MOST_WIDTH
    )


def _grid(found: Attention) -> Grid | None:
    """The batches of everything that is read and made."""
    matrices = [*_operands(found).values(), *(h.matrix for h in found.hidden)]
    results = [*found.sums, *found.results.values()]
    if (level := _level(found)) is not None:
        results.append(level)
    dims = [steps for result in results for steps in result.dims if steps is not None]
    if found.d is not None:
        dims += found.d.dims
    steps = [step for steps in dims for step in steps]
    steps += [(n, first) for m in matrices for n, first, _ in m.over]
    return Grid.of(found.pairs, steps)


def _operands(found: Attention) -> dict[str, Matrix]:
    named = {"q": found.q, "k": found.k, "v": found.v, "g": found.g}
    return {name: matrix for name, matrix in named.items() if matrix is not None}


# --- where the kernels stand


def _sites(
    found: Attention, block: ir.Block
) -> tuple[ir.Operation, ir.Operation] | None:
    """Where the kernels can stand: behind what they read, before what reads them."""
    named = _operands(found)
    g = named.pop("g", None)
    given = [matrix.base for matrix in named.values()]
    given += [hidden.matrix.base for hidden in found.hidden]
    slopes = [r.op for name, r in found.results.items() if name != "y"]
    others = [r.op for r in found.sums]
    others += [r.op for name, r in found.results.items() if name == "y"]
    others += [level.op] if (level := found.scores.level) is not None else []
    read = [*given, *([g.base] if g else []), *([found.d.value] if found.d else [])]
    if not all(_is_seen(value, block) for value in read):
        return None
    bring_forward(given, [op.result for op in (*others, *slopes)], block)
    bring_forward(read, [op.result for op in slopes], block)
    ops = [view.operation for view in block.operations]
    order = {op: number for number, op in enumerate(ops)}
    first = _after(given, order)
    last = max(first, _after(read, order))
    if _is_before(first, others, order) and _is_before(last, slopes, order):
        return ops[first], ops[last]
    return None


def _is_seen(value: ir.Value, block: ir.Block) -> bool:
    """Whether a block can read a value: it is made there, or in a block around it."""
    owner = value.owner
    home = owner if isinstance(owner, ir.Block) else owner.operation.block
    while block != home:
        around = block.owner.operation
        if around.parent is None or around.name == "func.func":
            return False
        block = around.block
    return True


def _after(values: Iterable[ir.Value], order: dict[ir.Operation, int]) -> int:
    """The place in a block behind all that make the values."""
    made = [-1]
    for value in values:
        if not isinstance(value.owner, ir.Block):
            made.append(order.get(value.owner.operation, -1))
    return max(made) + 1


def _is_before(
    place: int, results: Sequence[ir.Operation], order: dict[ir.Operation, int]
) -> bool:
    """Whether all that reads the results stands behind the place."""
    for op in results:
        for use in op.result.uses:
            user = use.owner.operation
            while user not in order:
                user = user.parent
                if user is None:
                    return False
            if order[user] < place:
                return False
    return True


def _straighten(value: ir.Value) -> None:
    """Let those that turn a result back to how a kernel writes it have that."""
    for use in list(value.uses):
        op = use.owner.operation
        if op.name == "stablehlo.reshape":
            _straighten(op.result)
        elif op.name == "stablehlo.transpose":
            view = view_of(op.result)
            steps = merged(step for steps in view.dims for step in steps)
            if view.offset == 0 and steps == ((hlo.size(view.base), 1),):
                with before(op):
                    shape = list(hlo.shape_of(op.result))
                    replace(op, [hlo.reshape(view.base, shape)])


# --- the calls


@dataclass
class _Calls:
    """The two kernels for what was found."""

    found: Attention
    grid: Grid
    executables: Executables
    pairs: ir.Value | None = field(default=None, init=False)
    pair_numbers: tuple[int, ...] = field(default=(0,) * 6, init=False)

    @property
    def can_read(self) -> bool:
        """Whether all that is read lies as the kernels read it, or can be laid so."""
        hidden = self.found.hidden
        for matrix in _operands(self.found).values():
            if matrix.apart != 1 and not self.grid.is_plain(matrix):
                return False
        if len(hidden) > 1:
            return all(self.grid.is_plain(h.matrix) for h in hidden)
        columns = [self.grid.steps(h.matrix)[COLUMNS] for h in hidden]
        floats = [h for h in hidden if h.number is None]
        return set(columns) <= {0, 1} and all(
            str(hlo.element_type(h.matrix.base)) == "f32" for h in floats
        )

    def result(self, name: str, value: ir.Value) -> tuple[ir.Operation, ir.Value]:
        """A result as the program has it, by its op."""
        result = self.found.results[name]
        return result.op, self.grid.turned(value, [*self._order(name), None], result)

    def forward(self) -> list[ir.Value]:
        """y, the sums of rows, and their largest scores."""
        self._read_pairs()
        self._straighten("qkv")
        inputs = [m.base for n, m in _operands(self.found).items() if n != "g"]
        rows = [self.grid.count(label) for label in self.grid.by_row]
        return self._call("pcp_attention", "qkv", inputs, [], ["y"], [rows, rows])

    def slopes(self, largest: ir.Value) -> list[ir.Value]:
        """dq, dk and dv."""
        self._straighten("g")
        found, grid = self.found, self.grid
        assert found.g is not None
        assert found.d is not None
        d = grid.sorted(found.d.value, found.d.dims, grid.by_row)
        d = hlo.negate(d) if found.less else d
        bases = [m.base for m in _operands(found).values()]
        others = [largest, bases[3], d]
        results = ["dq", "dk", "dv"]
        return self._call(
            "pcp_attention_slopes", "qkvg", bases[:3], others, results, []
        )

    def _straighten(self, names: str) -> None:
        """Lay operands whose width is not innermost so."""
        for name in names:
            matrix = getattr(self.found, name)
            if matrix is not None and matrix.apart != 1:
                across = COLUMNS if name in "kv" else ROWS
                setattr(self.found, name, self.grid.straight(matrix, across))

    def _read_pairs(self) -> None:
        """One number for each pair of what is hidden, for both kernels."""
        hidden = self.found.hidden
        if not hidden:
            return
        if len(hidden) > 1:
            self.pairs, matrix = self._all_hidden(hidden)
        else:
            ((matrix, number, _),) = hidden
            one = matrix.base if number is None else _numbers(hidden[0])
            self.pairs = one
        steps = self.grid.steps(matrix)
        levels = [steps[label] for label in self.grid.levels]
        self.pair_numbers = (matrix.offset, *levels, steps[ROWS], steps[COLUMNS])

    def _all_hidden(self, hidden: list[Hidden]) -> tuple[ir.Value, Matrix]:
        """Masks as one: the outer one's number stands in the place of the inner's."""
        grid = self.grid
        needed = [
            label
            for label in grid.everything
            if any(grid.steps(h.matrix)[label] for h in hidden)
        ]
        shape = [grid.count(label) for label in needed]
        found = hlo.zeros(hlo.tensor(shape, ir.F32Type.get()))
        for mask in reversed(hidden):
            numbers = grid.spread(_numbers(mask), mask.matrix, needed)
            chosen = hlo.compare("NE", numbers, hlo.constant_like(numbers, 0), "FLOAT")
            found = hlo.select(chosen, numbers, found)
        return found, grid.plain(found, needed)

    def _order(self, name: str) -> list[Label]:
        """How the dimensions of a result lie: as those of what it is like."""
        across, like = (
            (ROWS, self.found.q) if name in ("y", "dq") else (COLUMNS, self.found.k)
        )
        return self.grid.order(like, across)

    def _call(
        self,
        function: str,
        placed: str,
        inputs: Sequence[ir.Value],
        others: Sequence[ir.Value],
        made: Sequence[str],
        rows: Sequence[Sequence[int]],
    ) -> list[ir.Value]:
        found, grid = self.found, self.grid
        pairs = self.pairs if self.pairs is not None else inputs[0]
        kind = 0 if found.scores.level is None else LEVEL
        if found.hidden:
            kind |= ADDED if found.hidden[0].number is None else IN_PLACE
        numbers = [*(grid.count(label) for label in grid.levels[1:])]
        numbers += [found.rows, found.columns, found.width, found.ahead]
        numbers += [_bits(found.scores.scale), _bits(found.by), kind]
        named = _operands(found)
        for name in placed[:3]:
            numbers += grid.place(named[name], COLUMNS if name in "kv" else ROWS)
        numbers += self.pair_numbers
        for name in placed[3:]:
            numbers += grid.place(named[name], ROWS)
        shapes = []
        for name in made:
            order = self._order(name)
            shapes.append([*(grid.count(label) for label in order), found.width])
            numbers += grid.made(order, found.width)
        tensors = [*inputs, pairs, *others]
        results = [hlo.tensor(shape, ir.F32Type.get()) for shape in (*shapes, *rows)]
        call = KernelCall(
            SOURCE,
            function,
            ("f32",) * (len(tensors) + len(results)),
            tuple(hlo.size(value) for value in (*tensors, *results)),
            tuple(numbers),
            grid.parts,
        )
        return self.executables.dispatch(call, tensors, results)


def _numbers(hidden: Hidden) -> ir.Value:
    """A mask as numbers: zero for what is seen."""
    mask, number = hidden.matrix.base, hidden.number
    assert number is not None
    type_ = hlo.tensor(list(hlo.shape_of(mask)), ir.F32Type.get())
    some, none = hlo.constant(number, type_), hlo.zeros(type_)
    return hlo.select(mask, *((some, none) if hidden.when else (none, some)))


def _bits(number: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return bits
