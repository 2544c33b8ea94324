"""Propagation on the tests of Shardy: layouts against layouts, function by function.

    git clone https://github.com/openxla/shardy
    python benchmarks/shardy_propagation.py shardy --json propagation.json

Each of the 283 functions is propagated by both. Both layouts are then priced alike, by
pcp's partitioner: bytes that a member sends, and bytes of all values that a member
holds. `same` has the same layouts or bytes; `better` and `worse` have both bytes no
larger, or no smaller; `trade` sends less and holds more, or the other way round. What
pcp refuses is listed with what it says. A private function goes with its caller.

Needs what `pip install -e '.[compiler,jax]'` installs.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))

from partition import count_member  # noqa: E402

from pcp.compiler.catalog import pipeline  # noqa: E402
from pcp.dialect.bindings import ir  # noqa: E402
from pcp.dialect.context import parse  # noqa: E402
from pcp.errors import PcpError  # noqa: E402
from pcp.passes.core.rewriting import functions  # noqa: E402
from pcp.passes.core.walk import block_of, element_width, returned, walk  # noqa: E402
from pcp.passes.sharding.layout import SHARDING, Layout, from_attribute  # noqa: E402
from pcp.passes.sharding.mesh import only_mesh, read_meshes  # noqa: E402
from pcp.passes.sharding.ports import op_shardings, port_shardings  # noqa: E402

PROPAGATE = "builtin.module(pcp-propagate-sharding)"
PARTITION = "builtin.module(pcp-insert-reshards,pcp-partition,pcp-verify-plan)"

#: Ops that stand for their operand.
HINTS = ("pcp.barrier_prop", "pcp.constraint", "pcp.reshard", "stablehlo.constant")


class Price(NamedTuple):
    """Bytes that the busiest member sends, and that a member holds; the layouts."""

    sent: float
    held: int
    layouts: list[str]


def price(text: str, *, is_fixed: bool) -> Price:
    """Propagate and partition; layouts that are `fixed` stand on the ops themselves."""
    module = parse(text)
    if is_fixed:
        _put_on_ops(module)
    if not read_meshes(module):
        return Price(0.0, 0, [])
    pipeline(PROPAGATE).run(module)
    with module.context:
        held, layouts = _held(module)
    pipeline(PARTITION).run(module)
    with module.context:
        (mesh,) = read_meshes(module).values()
        ops = (view.operation for view in module.body.operations)
        homes = [op for op in ops if op.name == "builtin.module"]
        sent = max(count_member(home, mesh)[0] for home in homes)
    return Price(sent, held, layouts)


def _put_on_ops(module: ir.Module) -> None:
    """A constraint that alone reads an op's result becomes the op's own sharding."""
    with module.context:
        for function in functions(module):
            ops = list(walk(block_of(function, 0)))
            for op in [op for op in ops if op.name not in HINTS[:3]]:
                asked = [_constraint(result) for result in op.results]
                known = [c for c in asked if c is not None]
                if known and len(known) == len(asked):
                    said = [c.attributes["sharding"] for c in known]
                    op.attributes[SHARDING] = ir.ArrayAttr.get(said)
                    for c in known:
                        c.results[0].replace_all_uses_with(c.operands[0])
                        c.erase()


def _constraint(value: ir.Value) -> ir.Operation | None:
    users = [use.owner.operation for use in value.uses]
    is_only = len(users) == 1 and users[0].name == "pcp.constraint"
    return users[0] if is_only else None


def _held(module: ir.Module) -> tuple[int, list[str]]:
    mesh = only_mesh(module)
    total, layouts = 0, []
    for function in functions(module):
        for value, layout in _values(function):
            if isinstance(value.type, ir.RankedTensorType):
                shape = ir.RankedTensorType(value.type).shape
                part = layout.local_shape(shape, mesh, mesh.members[0])
                total += prod(part) * element_width(value)
                layouts.append(str(layout))
    return total, layouts


def _values(function: ir.Operation) -> Iterator[tuple[ir.Value, Layout]]:
    entry = block_of(function, 0)
    for which, values in (
        ("arg_attrs", list(entry.arguments)),
        ("res_attrs", list(returned(entry).operands)),
    ):
        given = port_shardings(function, which, len(values))
        for value, said in zip(values, given, strict=True):
            if said is not None:
                yield value, from_attribute(said)
    for op in walk(entry):
        if SHARDING in op.attributes and op.name not in HINTS:
            for result, said in zip(op.results, op_shardings(op), strict=True):
                yield result, from_attribute(said)


def verdict(program: dict) -> tuple[str, str]:
    """The class of one function, and the numbers or the reason."""
    if "error" in program:
        return "Shardy fails", program["error"]
    try:
        ours = price(program["before"], is_fixed=False)
    except PcpError as error:
        return "refused", str(error)
    try:
        theirs = price(program["behind"], is_fixed=True)
    except PcpError as error:
        return "not comparable", str(error)
    numbers = f"{ours.sent:,.0f} sent {ours.held:,} held"
    numbers += f", Shardy {theirs.sent:,.0f} and {theirs.held:,}"
    return _class(ours, theirs), numbers


def _class(ours: Price, theirs: Price) -> str:
    if ours.layouts == theirs.layouts or ours[:2] == theirs[:2]:
        return "same"
    if ours.sent <= theirs.sent and ours.held <= theirs.held:
        return "better"
    if ours.sent >= theirs.sent and ours.held >= theirs.held:
        return "worse"
    return "trade"


def main() -> None:
    """Print what is neither the same nor better, and the count of each class."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="a work tree of openxla/shardy")
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    oracle = [sys.executable, str(HERE / "shardy_programs.py"), str(flags.checkout)]
    done = subprocess.run(oracle, stdout=subprocess.PIPE, text=True, check=True)
    programs = json.loads(done.stdout)
    rows: list[dict[str, str]] = []
    of_chunk: dict[tuple[str, int], tuple[str, str]] = {}
    for program in sorted(programs, key=lambda program: "private" in program):
        place = program["file"], program["chunk"]
        known = "private" in program and place in of_chunk
        found = of_chunk[place] if known else verdict(program)
        of_chunk[place] = found
        rows.append(dict(zip(("class", "why"), found, strict=True)))
        rows[-1] |= {"file": program["file"], "name": program["name"]}
        if found[0] not in ("same", "better"):
            print(f"{found[0]:14} {program['name']:60} {found[1]}")
    classes = Counter(row["class"] for row in rows)
    print(f"{len(rows)} functions: {dict(classes.most_common())}")
    if flags.json:
        flags.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
