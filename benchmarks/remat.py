"""What pcp-remat predicts, and what IREE then holds and takes, on a GPT's gradient.

A row for each way to run the same gradient program. Peaks are MiB beyond the
arguments, in one call: predicted by the pass (which counts the results, too), and
measured as the most bytes that the device's allocator had out. Ratios are to the
program as pcp-grad leaves it; times are the processor's, on one thread, the programs
in turns. A row whose gradients are not the same bits as the first's is an error.

python benchmarks/remat.py --layers 12 --width 64 --json out.json
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
from autodiff_programs import Program, gpt

from pcp.autodiff.core import functions
from pcp.autodiff.passes.derivatives import Grad
from pcp.compiler.attributes import dictionary
from pcp.compiler.catalog import pipeline
from pcp.compiler.emission import emit_all
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import find
from pcp.dialect.bindings import ir
from pcp.frontends.jax import from_jax
from pcp.passes.simplify.simplify import Simplify

MIB = 2**20
CALL_S = 300  # of the child that measures one call
MODULE, ARGUMENTS = "module.vmfb", "arguments.npz"
KEEP_ALL = "policy=everything_saveable"
#: Options of pcp-remat; `budget` is given in percent of the predicted keep-all peak.
VARIANTS = (
    KEEP_ALL,
    "policy=nothing_saveable",
    "policy=dots_saveable",
    "policy=dots_with_no_batch_dims_saveable",
    "segments=4",
    "segments=12",
    "segments=12 slots=3",
    "budget=50%",
    "budget=40%",
)


def gradient(program: Program) -> ir.Module:
    """The module with `@main_grad`, after pcp-grad and pcp-simplify."""
    module = from_jax(program.loss, program.weights, *program.data)
    Grad(wrt=tuple(range(len(program.weights)))).run(module)
    Simplify().run(module)
    return module


def binary_of(module: ir.Module) -> bytes:
    """Compiled for this machine, as pcp-compile does."""
    options = CompileOptions(targets=("cpu:host",), cache=None)
    return emit_all([(module, find("cpu:host"))], options)[0].content


class Loaded:
    """A compiled function with its arguments on the device, on one thread."""

    def __init__(self, binary: bytes, arguments: Sequence[np.ndarray]) -> None:
        import iree.runtime as rt

        config = rt.Config("local-sync")
        context = rt.SystemContext(config=config)
        loaded = rt.VmModule.copy_buffer(context.instance, binary)
        context.add_vm_module(loaded)
        self.device = config.device
        self.call = context.modules[loaded.name]["main_grad"]
        self.arguments = [rt.asdevicearray(self.device, a) for a in arguments]

    def results(self) -> list[np.ndarray]:
        """Of one call, on the host."""
        return [np.asarray(r.to_host()) for r in self.call(*self.arguments)]

    def seconds(self) -> float:
        """Processor time of a call."""
        start = process_time()
        self.call(*self.arguments)
        return process_time() - start


def peak(binary: bytes, arguments: Sequence[np.ndarray]) -> int:
    """The most bytes beyond the arguments that a call holds.

    Devices of a process share one allocator and its statistics, so this is a
    process of its own.
    """
    with TemporaryDirectory(prefix="pcp-remat-") as folder:
        Path(folder, MODULE).write_bytes(binary)
        np.savez(Path(folder, ARGUMENTS), *arguments)
        command = [sys.executable, __file__, "--peak", folder]
        found = subprocess.run(
            command, check=True, timeout=CALL_S, stdout=subprocess.PIPE, text=True
        )
    return int(found.stdout)


def own_peak(folder: Path) -> int:
    """The child's half of `peak`."""
    with np.load(folder / ARGUMENTS) as saved:
        arguments = [saved[name] for name in saved.files]
    loaded = Loaded((folder / MODULE).read_bytes(), arguments)
    loaded.call(*loaded.arguments)
    most = loaded.device.allocator.statistics["device_bytes_peak"]
    return most - sum(a.nbytes for a in arguments)


@dataclass
class Variant:
    """One row: the pass's options, what it reports, and the program."""

    options: str
    report: dict[str, int]
    peak: int
    loaded: Loaded

    @staticmethod
    def of(options: str, program: Program) -> "Variant":
        """Rewrite, legalise and compile the program's gradient."""
        module = gradient(program)
        pipeline(f"builtin.module(pcp-remat{{{options}}})").run(module)
        function = functions.find(module, "main_grad")
        report = dictionary(function.attributes["pcp.remat"])
        with module.context:
            functions.find(module, "main").erase()
        passes = "pcp-simplify,pcp-legalize,pcp-strip-metadata,canonicalize,cse"
        pipeline(f"builtin.module({passes})").run(module)
        binary, arguments = binary_of(module), [*program.weights, *program.data]
        found = peak(binary, arguments)
        return Variant(options, report, found, Loaded(binary, arguments))


def absolute(options: str, whole: int) -> str:
    """`budget=50%` of `whole` bytes; other options as they are."""
    key, _, share = options.partition("=")
    if key != "budget" or not share.endswith("%"):
        return options
    return f"budget={whole * int(share[:-1]) // 100}B"


def table(
    program: Program, variants: Sequence[str], rounds: int
) -> list[dict[str, Any]]:
    """A row for each variant behind one for keeping all; raises if bits differ."""
    plain = Variant.of(KEEP_ALL, program)
    wanted = plain.loaded.results()
    rows = []
    for options in variants:
        given = absolute(options, plain.report["peak_bytes"])
        found = plain if options == KEEP_ALL else Variant.of(given, program)
        same = zip(found.loaded.results(), wanted, strict=True)
        if not all(a.tobytes() == b.tobytes() for a, b in same):
            raise SystemExit(f"{options}: the results are not the same bits")
        rows.append({"options": options, **_row(plain, found, rounds)})
    return rows


def _row(plain: Variant, found: Variant, rounds: int) -> dict[str, float]:
    times = [(plain.loaded.seconds(), found.loaded.seconds()) for _ in range(rounds)]
    own, other = (median(t) for t in zip(*times, strict=True))
    return {
        "predicted": found.report["peak_bytes"] / MIB,
        "ratio": found.report["peak_bytes"] / plain.report["peak_bytes"],
        "measured": found.peak / MIB,
        "measured_ratio": found.peak / plain.peak,
        "flops_ratio": found.report["flops"] / plain.report["flops"],
        "time_ratio": other / own,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A table with a column for each key."""
    keys = list(rows[0])[1:]
    print(f"{'options':<42}" + "".join(f"{key:>16}" for key in keys))
    for row in rows:
        print(f"{row['options']:<42}" + "".join(f"{row[k]:>16.3f}" for k in keys))


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    defaults = {"layers": 12, "width": 64, "heads": 4, "tokens": 64}
    defaults |= {"vocabulary": 256, "batch": 4, "rounds": 7}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--options", action="append", help="rows; default: all")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--peak", type=Path, help=argparse.SUPPRESS)
    given = vars(parser.parse_args(arguments))
    folder = given.pop("peak")
    if folder:
        print(own_peak(folder))
        return 0
    rounds, path = given.pop("rounds"), given.pop("json")
    variants = given.pop("options") or VARIANTS
    rows = table(gpt(**given), variants, rounds)
    show(rows)
    if path:
        path.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
