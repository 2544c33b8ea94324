"""What differentiation costs, and what its programs cost, against JAX.

Three tables:

- count: operations and bytes of pcp's gradient program and of JAX's, both as they
  are before any compiler optimises them, by one counter (`pcp.passes.analysis.cost`);
- time: both compiled by the same IREE with the same flags and run in turns, on
  one thread, in seconds of processor time;
- speed: seconds to differentiate, simplify and verify a GPT of 2048 tokens.

python benchmarks/autodiff.py --tables count,time,speed --json out.json
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from time import process_time
from typing import Any

import numpy as np
from autodiff_programs import PROGRAMS, Program, gpt

from pcp.autodiff.core import functions
from pcp.autodiff.passes.derivatives import Grad
from pcp.autodiff.passes.inline_composites import InlineComposites
from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.frontends.jax import from_jax
from pcp.passes.analysis import cost
from pcp.passes.core.base import verify
from pcp.passes.simplify.simplify import Simplify

#: Relative to the largest gradient; both run the same arithmetic in float32.
TOLERANCE = 1e-4


def ours(program: Program) -> ir.Module:
    """`@main_grad`, after pcp-grad, pcp-inline-composites and pcp-simplify."""
    module = from_jax(program.loss, program.weights, *program.data)
    Grad(wrt=tuple(range(len(program.weights)))).run(module)
    InlineComposites().run(module)
    Simplify().run(module)
    return module


def theirs(program: Program) -> ir.Module:
    """JAX's value_and_grad as it leaves JAX, calls inlined.

    Rules of derivatives are of no more use: what has one would stay a composite.
    """
    import jax

    function = jax.value_and_grad(program.loss)
    return from_jax(function, program.weights, *program.data, rules=False)


# --- counts ---


def count(module: ir.Module, name: str) -> cost.Cost:
    """Operations and bytes of one function."""
    with module.context:
        return cost.total(functions.body(functions.find(module, name)).operations)


def counts(names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each program, and one for the sums."""
    rows, sums = [], [cost.Cost(), cost.Cost()]
    for name in names:
        program = PROGRAMS[name]()
        pair = count(ours(program), "main_grad"), count(theirs(program), "main")
        sums = [a + b for a, b in zip(sums, pair, strict=True)]
        rows.append(_counted(name, *pair))
    return [*rows, _counted("sum", *sums)]


def _counted(name: str, own: cost.Cost, other: cost.Cost) -> dict[str, Any]:
    return {
        "program": name,
        "flops": own.flops,
        "flops_ratio": own.flops / other.flops,
        "bytes": own.bytes,
        "bytes_ratio": own.bytes / other.bytes,
    }


# --- run time ---


def compiled(module: ir.Module, name: str) -> Callable[..., list[np.ndarray]]:
    """`@name` alone, legalised and compiled for this machine, on one thread."""
    import iree.compiler
    import iree.runtime

    with module.context:
        for op in list(module.body.operations):
            if op.operation.name == "func.func" and op.name.value != name:
                op.operation.erase()
    text = "pcp-legalize,pcp-strip-metadata,canonicalize,cse"
    pipeline(text).run(module)
    binary = iree.compiler.compile_str(
        str(module),
        target_backends=["llvm-cpu"],
        input_type="stablehlo",
        extra_args=["--iree-llvmcpu-target-cpu=host"],
    )
    context = iree.runtime.SystemContext(config=iree.runtime.Config("local-sync"))
    loaded = iree.runtime.VmModule.copy_buffer(context.instance, binary)
    context.add_vm_module(loaded)
    function = context.modules[loaded.name][name]

    def run(*arguments: np.ndarray) -> list[np.ndarray]:
        return [r.to_host() for r in function(*arguments)]

    return run


def disagreement(own: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """The largest difference of two results, relative to its largest element."""
    pairs = zip(own, other, strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(b).max() or 1)) for a, b in pairs)


def race(name: str, rounds: int) -> dict[str, Any]:
    """Medians of `rounds` turns each; raises if the gradients differ.

    Seconds are the processor's: both run on one thread, the calling one, so other
    work on the machine is not counted.
    """
    program = PROGRAMS[name]()
    runners = compiled(ours(program), "main_grad"), compiled(theirs(program), "main")
    arguments = [*program.weights, *program.data]
    results = [run(*arguments) for run in runners]
    difference = disagreement(*results)
    if not difference < TOLERANCE:
        raise SystemExit(f"{name}: the gradients differ by {difference:.1e}")
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for run, kept in zip(runners, seconds, strict=True):
            start = process_time()
            run(*arguments)
            kept.append(process_time() - start)
    own, other = map(median, seconds)
    return {
        "program": name,
        "pcp_s": own,
        "jax_s": other,
        "ratio": own / other,
        "difference": difference,
    }


def races(names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """A row for each program, and their geometric mean."""
    rows = [race(name, rounds) for name in names]
    mean = geometric_mean(row["ratio"] for row in rows)
    return [*rows, {"program": "geometric mean", "ratio": mean}]


# --- speed of the passes ---


def chain(layers: int) -> dict[str, Any]:
    """Processor seconds of each step on a GPT of so many layers."""
    program = gpt(layers, 128, 4, tokens=2048, vocabulary=1024, batch=1)
    text = str(from_jax(program.loss, program.weights, *program.data))
    wrt = tuple(range(len(program.weights)))
    start, module = process_time(), parse(text)
    times = {"parse": process_time()}
    Grad(wrt=wrt).run(module)
    times["grad"] = process_time()
    Simplify().run(module)
    times["simplify"] = process_time()
    verify(module, "pcp-simplify")
    times["verify"] = process_time()
    row: dict[str, Any] = {"layers": layers}
    before = start
    for step, now in times.items():
        row[step], before = now - before, now
    body = functions.body(functions.find(module, "main_grad"))
    return {**row, "total": before - start, "ops": len(list(body.operations))}


# --- the script ---


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A table with a column for each key of the first row."""
    keys = list(rows[0])
    print("".join(f"{key:>15}" for key in keys))
    for row in rows:
        print("".join(f"{_text(row.get(key)):>15}" for key in keys))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"
    return "" if value is None else str(value)


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments, measure and print."""
    options = _options(arguments)
    names = options.programs.split(",")
    makers: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "count": lambda: counts(names),
        "time": lambda: races(names, options.rounds),
        "speed": lambda: [chain(int(n)) for n in options.layers.split(",")],
    }
    tables = {}
    for table in options.tables.split(","):
        tables[table] = makers[table]()
        print(f"\n{table}")
        show(tables[table])
    if options.json:
        options.json.write_text(json.dumps(tables, indent=2))
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", default="count,time,speed")
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--layers", default="6,12,24,48")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
