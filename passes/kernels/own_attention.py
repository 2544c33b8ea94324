"""Attention by the kernels of native/attention.c: no tensor of all pairs of positions.

| entry | pattern | reference | tolerance |
|---|---|---|---|
| `attention` | what `passes/kernels/attention.py` finds: rows a multiple of 8, \
columns of 32, a head's width of 16 and at most 64 | the ops | 2⁻¹⁸ of the largest |

`benchmarks/step.py` measures them in a whole program; docs/evidence.md has the gain.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import before, replace
from pcp.passes.kernels.attention import Attention, Matrix, find
from pcp.passes.kernels.own_dispatch import Executables, KernelCall
from pcp.passes.kernels.views import merged, view_of

SOURCE, ROOT = "attention", "stablehlo.exponential"
ROWS, COLUMNS, WIDTH, MOST_WIDTH = 8, 32, 16, 64
"""What rows, columns and width of a head are multiples of, as the kernels need it."""

Where = tuple[int, int, int, int]
"""The first element; how far apart sequences, heads and rows are."""


def attend(exponential: ir.Operation, executables: Executables) -> bool:
    """Put kernels in the place of the attention that reads these, if it is that."""
    found = find(exponential)
    if found is None or not _fits(found) or (heads := _heads(found)) is None:
        return False
    places: dict[str, Where] = {}
    for name, matrix in _operands(found).items():
        if (place := _place(matrix, found, heads)) is None:
            return False
        places[name] = place
    if (sites := _sites(found, exponential.block)) is None:
        return False
    calls = _Calls(found, heads, places, executables)
    outcomes: list[tuple[ir.Operation, ir.Value]] = []
    with ir.InsertionPoint(sites[0]), exponential.location:
        y, sums, largest = calls.forward()
        outcomes += [(op, _shaped(sums, op)) for op in found.sums]
        outcomes += _turned(found, {"y": y})
    if found.d is not None:
        with ir.InsertionPoint(sites[1]), exponential.location:
            dq, dk, dv = calls.slopes(largest)
            outcomes += _turned(found, {"dq": dq, "dk": dk, "dv": dv})
    for op, value in outcomes:
        replace(op, [value])
        _straighten(value)
    return True


def _sites(
    found: Attention, block: ir.Block
) -> tuple[ir.Operation, ir.Operation] | None:
    """Where the kernels can stand: behind what they read, before what reads them."""
    ops = [view.operation for view in block.operations]
    order = {op: number for number, op in enumerate(ops)}
    bases = [matrix.base for matrix in _operands(found).values()]
    slopes = [r.op for name, r in found.results.items() if name != "y"]
    others = [*found.sums, *(r.op for n, r in found.results.items() if n == "y")]
    read = [*bases, *([found.d] if found.d else [])]
    if not all(_is_seen(value, block) for value in read):
        return None
    first = _after(bases[:3], order)
    last = max(first, _after(read, order))
    if _is_before(first, others, order) and _is_before(last, slopes, order):
        return ops[first], ops[last]
    return None


def _fits(found: Attention) -> bool:
    return (
        found.rows % ROWS == found.columns % COLUMNS == found.width % WIDTH == 0
        and found.width <= MOST_WIDTH
    )


def _operands(found: Attention) -> dict[str, Matrix]:
    named = {"q": found.q, "k": found.k, "v": found.v, "g": found.g}
    return {name: matrix for name, matrix in named.items() if matrix is not None}


def _heads(found: Attention) -> int | None:
    """How many batches make a sequence, where the operands agree."""
    known = {m.batch[1][0] for m in _operands(found).values() if len(m.batch) == 2}
    return (known or {1}).pop() if len(known) < 2 else None


def _place(matrix: Matrix, found: Attention, heads: int) -> Where | None:
    """Where a kernel finds it, if that is how its elements lie."""
    if matrix.columns != ((found.width, 1),) or len(matrix.rows) != 1:
        return None
    ((_, row),) = matrix.rows
    match matrix.batch:
        case ():
            return matrix.offset, 0, 0, row
        case ((_, apart),):
            return matrix.offset, apart * heads, apart, row
        case ((_, sequence), (_, head)):
            return matrix.offset, sequence, head, row
        case _:
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


def _shaped(value: ir.Value, op: ir.Operation) -> ir.Value:
    shape = list(hlo.shape_of(op.result))
    return value if shape == list(hlo.shape_of(value)) else hlo.reshape(value, shape)


def _turned(
    found: Attention, made: dict[str, ir.Value]
) -> Iterator[tuple[ir.Operation, ir.Value]]:
    """What the program has of it, as the program has it, by its op."""
    for name, value in made.items():
        if (result := found.results.get(name)) is not None:
            order = [0, 2, 3, 1] if result.turned else [0, 2, 1, 3]
            yield result.op, _shaped(hlo.transpose(value, order), result.op)


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
                    replace(op, [_shaped(view.base, op)])


@dataclass(frozen=True)
class _Calls:
    """The two kernels for what was found."""

    found: Attention
    heads: int
    places: dict[str, Where]
    executables: Executables

    def forward(self) -> list[ir.Value]:
        """y, the sums of rows, and their largest scores."""
        found = self.found
        inputs = [m.base for n, m in _operands(found).items() if n != "g"]
        shapes = [self._like(found.rows), *[[found.batch, found.rows]] * 2]
        return self._call("pcp_attention", "qkv", inputs, shapes)

    def slopes(self, largest: ir.Value) -> list[ir.Value]:
        """dq, dk and dv."""
        found = self.found
        assert found.g is not None
        assert found.d is not None
        d = hlo.negate(found.d) if found.less else found.d
        bases = [m.base for m in _operands(found).values()]
        inputs = [*bases[:3], largest, bases[3], d]
        shapes = [self._like(n) for n in (found.rows, found.columns, found.columns)]
        return self._call("pcp_attention_slopes", "qkvg", inputs, shapes)

    def _like(self, rows: int) -> list[int]:
        """All heads of a position lie together."""
        sequences = self.found.batch // self.heads
        return [sequences, rows, self.heads, self.found.width]

    def _call(
        self,
        function: str,
        placed: str,
        inputs: Sequence[ir.Value],
        shapes: Sequence[list[int]],
    ) -> list[ir.Value]:
        found = self.found
        results = [hlo.tensor(shape, ir.F32Type.get()) for shape in shapes]
        numbers = [self.heads, found.rows, found.columns, found.width, found.ahead]
        numbers += [_bits(found.scale), _bits(found.by)]
        for name in placed:
            numbers += self.places[name]
        call = KernelCall(
            SOURCE,
            function,
            ("f32",) * (len(inputs) + len(results)),
            tuple(hlo.size(value) for value in (*inputs, *results)),
            tuple(numbers),
            found.batch,
        )
        return self.executables.dispatch(call, inputs, results)


def _bits(number: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return bits
