"""A program on which pcp fails, made as small as it still fails the same way.

    python benchmarks/torture_reduce.py 'lax cumsum_...' --out small.mlir
    python benchmarks/torture_reduce.py model.mlir --out small.mlir

First ops: delta debugging (Zeller and Hildebrandt 2002) over the ops of `@main`. What
is left out becomes an argument where it is read, with the value that XLA gives it, and
results are what no other op left reads. Then sizes: a number of the tensor types
becomes a smaller one everywhere in the text, where the text still verifies.
`small.mlir` gets the program, `small.pickle` beside it its arguments.
"""

import argparse
import pickle
import re
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torture_programs
from torture import Worker

from pcp.dialect.bindings import PassManager, ir
from pcp.dialect.context import parse
from pcp.errors import IRError
from pcp.passes.core.walk import returned


@dataclass(frozen=True)
class Case:
    """A text, the arguments of its `@main`, and the mode to compile it in."""

    text: str
    arguments: list[np.ndarray]

    def write(self, path: Path) -> None:
        """The text at `path`, the arguments beside it."""
        path.write_text(self.text)
        path.with_suffix(".pickle").write_bytes(pickle.dumps(self.arguments))


class Failure:
    """How a case fails, and whether another one fails so."""

    def __init__(self, case: Case, options: Namespace) -> None:
        self._options = options
        self._worker = Worker(options)
        self.tried = 0
        self.kind = self._kind(case)

    def __call__(self, case: Case) -> bool:
        """Whether it fails in the same way."""
        return self._kind(case) == self.kind

    def _kind(self, case: Case) -> tuple[str, str]:
        """The outcome, with what an error says before it names anything."""
        self.tried += 1
        if not self._worker.running:
            self._worker = Worker(self._options)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "case.mlir")
            case.write(path)
            line = self._worker.judge("text", str(path))
        self.message = line["message"]
        said = re.sub(r"[\d'\"%<>]+", "", self.message.split("[alone")[0])
        words = said.split(": ")[-1] if line["outcome"] != "wrong" else ""
        return line["outcome"], words[:60]

    def stop(self) -> None:
        """End the process that judges."""
        self._worker.stop()


def reduced(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest found, first in ops and then in sizes."""
    case = _fewer_ops(case, fails)
    return _smaller(case, fails)


# --- ops ---


def _fewer_ops(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Delta debugging over the ops of `@main`."""
    values = _every_value(case)
    kept = list(range(_count(case.text)))
    parts = 2
    while len(kept) > 1:
        size = max(1, -(-len(kept) // parts))
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        others = [[k for k in kept if k not in chunk] for chunk in chunks]
        tries = [*chunks, *others] if len(chunks) > 2 else chunks
        better = next((t for t in tries if t and fails(_only(case, t, values))), None)
        if better is not None:
            parts = 2 if better in chunks else max(parts - 1, 2)
            kept = better
        elif size == 1:
            break
        else:
            parts = min(2 * parts, len(kept))
    small = _only(case, kept, values)
    return small if fails(small) else case


def _body(module: ir.Module) -> ir.Block:
    (function,) = [op for op in module.body.operations if op.name.value == "main"]
    return function.regions[0].blocks[0]


def _count(text: str) -> int:
    module = parse(text)  # held: its block goes with it
    return len(list(_body(module).operations)) - 1


def _every_value(case: Case) -> dict[tuple[int, int], np.ndarray]:
    """Result j of op i by XLA, and arguments as results of op -1."""
    module = parse(case.text)
    block = _body(module)
    places = [
        (i, j)
        for i, op in enumerate(list(block.operations)[:-1])
        for j in range(len(op.operation.results))
    ]
    ops = [view.operation for view in block.operations]
    _finish(module, [ops[i].results[j] for i, j in places])
    found = torture_programs.by_xla(str(module), case.arguments)
    given = {(-1, j): x for j, x in enumerate(case.arguments)}
    return given | dict(zip(places, found, strict=True))


def _finish(module: ir.Module, results: Sequence[ir.Value]) -> None:
    """`@main` returns `results`; its type follows."""
    block = _body(module)
    function, old = block.owner.operation, returned(block)
    with module.context, ir.Location.unknown():
        with ir.InsertionPoint(old):
            ir.Operation.create("func.return", operands=list(results))
        old.erase()
        kind = ir.FunctionType.get(
            [a.type for a in block.arguments], [r.type for r in results]
        )
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        for name in ("res_attrs", "arg_attrs"):
            if name in function.attributes:
                del function.attributes[name]


def _only(
    case: Case, kept: Sequence[int], values: dict[tuple[int, int], np.ndarray]
) -> Case:
    """The program of the ops at `kept`; all else that they read is an argument."""
    module = parse(case.text)
    block = _body(module)
    ops = [view.operation for view in block.operations][:-1]
    chosen = set(kept)
    where = {(-1, j): a for j, a in enumerate(block.arguments)}
    where |= {(i, j): r for i, op in enumerate(ops) for j, r in enumerate(op.results)}
    inside = [ops[i] for i in kept]
    arguments, results = [], []
    for (i, j), value in where.items():
        used = any(_holder(use.owner.operation, block) in inside for use in value.uses)
        if i in chosen and not used:
            results.append(value)
        if i in chosen or not used:
            continue
        arguments.append(values[i, j])
        with ir.Location.unknown(module.context):
            value.replace_all_uses_with(
                block.add_argument(value.type, ir.Location.unknown())
            )
    _finish(module, results)
    for op in reversed(ops):
        if op not in inside:
            op.erase()
    for j in reversed(range(len(case.arguments))):
        block.erase_argument(j)
    _finish(module, list(returned(block).operands))
    return Case(str(module), arguments)


def _holder(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """The op of `block` that `op` is, or is inside of."""
    while op.block != block:
        op = op.parent.operation
    return op


# --- sizes ---

_TENSOR = re.compile(r"tensor<((?:\d+x)+)")


def _smaller(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Each size as small as it may be."""
    for size in sorted(_sizes(case.text), reverse=True):
        for less in _less(size):
            text = re.sub(
                rf"(?<![\da-wyzA-Z_.%]){size}(?=x|[,\] >])", str(less), case.text
            )
            try:
                module = parse(text)
            except IRError:
                continue
            smaller = Case(str(module), torture_programs.drawn(module))
            if fails(smaller):
                case = smaller
                break
    return case


def _sizes(text: str) -> set[int]:
    found = {int(n) for dims in _TENSOR.findall(text) for n in dims.split("x") if n}
    return {n for n in found if n > 2}


def _less(size: int) -> Iterator[int]:
    """Smaller sizes to try, the smallest first."""
    yield from sorted({n for n in (1, 2, 3, 4, 8, size // 2) if n < size})


# --- the command ---


def given(name: str, targets: str) -> Case:
    """The program of a section, or the text of a file."""
    if name.endswith(".mlir"):
        text = Path(name).read_text()
        return Case(text, torture_programs.drawn(parse(text)))
    section, _, rest = name.partition(" ")
    program = torture_programs.SECTIONS[section]()[rest]()
    module = program.module()
    with module.context:
        PassManager.parse("builtin.module(inline,symbol-dce)").run(module.operation)
    return Case(str(module), program.arguments)


def main() -> None:
    """Reduce, write, and print the program."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join((__doc__ or "").splitlines()[1:]),
    )
    parser.add_argument("name", help="'section name' of torture.py, or FILE.mlir")
    parser.add_argument("--out", type=Path, help="FILE.mlir")
    parser.add_argument("--targets", default="cpu")
    parser.add_argument("--cache", type=Path, help="a folder for compiled modules")
    parser.add_argument("--limit", type=float, default=120, help="seconds a program")
    options = parser.parse_args()
    options.turns = False
    torture_programs.configure()
    case = given(options.name, options.targets)
    fails = Failure(case, options)
    try:
        if fails.kind[0] == "equal":
            sys.exit(f"{options.name}: it does not fail as a text of its own")
        small = reduced(case, fails)
        fails(small)
    finally:
        fails.stop()
    if options.out:
        small.write(options.out)
    print(f"// {fails.tried} programs tried; {fails.kind[0]}: {fails.message}")
    print(small.text)


if __name__ == "__main__":
    main()
