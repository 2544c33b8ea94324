"""Bytes that a member sends: pcp's partitioner against Shardy's, on equal programs.

    python benchmarks/partition.py                  # training steps, 60 random programs
    python benchmarks/partition.py --random 300 --json partition.json

Both get the same annotated StableHLO and propagate, reshard and partition it by
themselves. Counted are the collectives of the program that comes out, a ring's bytes
each. Shardy runs as jaxlib carries it, in a process of its own for each program: on
some it ends with a failed check (so does every program that it would have to pad);
those are listed and take no part in the sums. Random programs have annotations that
divide their dimensions, since Shardy drops others.

Needs what `pip install -e '.[compiler,jax]'` installs.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from math import prod
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))

from helpers.models import sharded  # noqa: E402
from helpers.oracles.spmd import PLAN  # noqa: E402
from helpers.random_programs.spmd import random_program  # noqa: E402
from shardy import SENT  # noqa: E402

from pcp.compiler.catalog import pipeline  # noqa: E402
from pcp.dialect.base import strings  # noqa: E402
from pcp.dialect.bindings import ir  # noqa: E402
from pcp.dialect.context import parse  # noqa: E402
from pcp.passes.sharding.mesh import Mesh, read_meshes  # noqa: E402

DEADLINE_S = 120


def ours(text: str) -> tuple[float, Counter[str]]:
    """(bytes that the busiest member sends, collectives by kind)."""
    module = parse(text)
    pipeline(PLAN).run(module)
    with module.context:
        (mesh,) = read_meshes(module).values()
        members = [
            count_member(op.operation, mesh)
            for op in module.body.operations
            if op.operation.name == "builtin.module"
        ]
    return max(members, key=lambda member: member[0])


def count_member(home: ir.Operation, mesh: Mesh) -> tuple[float, Counter[str]]:
    """Bytes that one member's module sends, and its collectives by kind."""
    total, kinds = [0.0], Counter[str]()

    def visit(op: ir.Operation) -> ir.WalkResult:
        kind = op.name.removeprefix("pcp.")
        if kind in SENT and "axes" in op.attributes:
            members = mesh.count(strings(op, "axes"))
            given, result = (_bytes(v) for v in (op.operands[0], op.results[0]))
            total[0] += SENT[kind](members, given, result)
            kinds[kind] += 1
        return ir.WalkResult.ADVANCE

    home.walk(lambda op: visit(op.operation))
    return total[0], kinds


def _bytes(value: ir.Value) -> int:
    type_ = ir.RankedTensorType(value.type)
    return prod(type_.shape) * max(1, type_.element_type.width // 8)


def shardy(text: str) -> tuple[float, Counter[str]] | str:
    """The same of Shardy's program, or why there is none."""
    done = subprocess.run(
        [sys.executable, str(HERE / "shardy.py")],
        input=text,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "Check failed" in line]
        return said[0][-70:] if said else f"ended with {done.returncode}"
    answer = json.loads(done.stdout)
    return answer["bytes"], Counter(answer["kinds"])


def compare(name: str, text: str, rows: list[dict[str, object]]) -> None:
    """One line, and a row for the JSON file."""
    mine, kinds = ours(text)
    theirs = shardy(text)
    row: dict[str, object] = {"program": name, "pcp": mine, "kinds": dict(kinds)}
    if isinstance(theirs, str):
        print(f"{name:18} {mine:12,.0f} {'-':>12}        Shardy: {theirs}")
        row["failed"] = theirs
    else:
        ratio = mine / theirs[0] if theirs[0] else 1.0 if not mine else float("inf")
        print(f"{name:18} {mine:12,.0f} {theirs[0]:12,.0f} {ratio:6.2f}")
        row |= {"shardy": theirs[0], "shardy_kinds": dict(theirs[1])}
    rows.append(row)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--random", type=int, default=60, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(f"{'program':18} {'pcp':>12} {'Shardy':>12}  ratio   (bytes a member sends)")
    for model in sharded.models():
        for plan, (axes, cut) in sharded.PLANS.items():
            if sharded.fits(model, axes, cut):
                text = sharded.annotate(model, axes, cut)
                compare(f"{model} {plan}", text, rows)
    steps = len(rows)
    for seed in range(flags.random):
        compare(f"random {seed}", random_program(seed, even=True)[0], rows)
    for title, part in (("training steps", rows[:steps]), ("random", rows[steps:])):
        both = [row for row in part if "shardy" in row]
        mine = sum(float(str(row["pcp"])) for row in both)
        theirs = sum(float(str(row["shardy"])) for row in both)
        print(
            f"{title}: {len(both)} of {len(part)} run in Shardy; "
            f"{mine:,.0f} against {theirs:,.0f} bytes, {mine / max(theirs, 1):.2f}x"
        )
    if flags.json:
        flags.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
