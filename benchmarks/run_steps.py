"""Processor time of a step of `pcp run --steps`: two installed versions in turns.

    python benchmarks/run_steps.py OLD/.venv/bin/python NEW/.venv/bin/python m.pcp
    python benchmarks/run_steps.py OLD NEW m.pcp --steps 200 --rounds 5 -- --tau 10

What a run of so many steps uses, of all its processes, less what one of a tenth of them
does: starting and loading are in both. Prints each round's step of both versions, and
the median over the rounds of new / old. Both run the one bundle, with inputs from
`random:0` and what stands behind `--`. On a busy machine processor time says more than
the clock, which is printed besides.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path


def used(
    python: str, bundle: str, steps: int, more: Sequence[str]
) -> tuple[float, ...]:
    """Seconds of the processors, and of the clock, of a run by an interpreter's pcp."""
    with tempfile.TemporaryDirectory() as folder:
        line = [python, "-m", "pcp.tools.cli", "run", bundle, "--inputs", "random:0"]
        line += ["--steps", str(steps), "--out", str(Path(folder, "o.npz")), *more]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(line, stdout=subprocess.DEVNULL, check=True)
        after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, seconds - began


def a_step(python: str, bundle: str, steps: int, more: Sequence[str]) -> list[float]:
    """The same of one step, in milliseconds."""
    few = max(1, steps // 10)
    ends = [used(python, bundle, count, more) for count in (few, steps)]
    return [1e3 * (b - a) / (steps - few) for a, b in zip(*ends, strict=True)]


def main() -> int:
    """Compare; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", help="an interpreter with the older pcp")
    parser.add_argument("new", help="one with the newer")
    parser.add_argument("bundle")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("more", nargs="*", help="for `pcp run`, behind --")
    flags = parser.parse_args()
    ratios = []
    for number in range(flags.rounds):
        order = [flags.old, flags.new]
        found = {}
        for python in order if number % 2 == 0 else reversed(order):
            found[python] = a_step(python, flags.bundle, flags.steps, flags.more)
        (old, late), (new, later) = found[flags.old], found[flags.new]
        ratios.append(new / old)
        print(
            f"old {old:.3f} ms (clock {late:.3f}), new {new:.3f} ms (clock "
            f"{later:.3f}): {new / old:.3f}",
            flush=True,
        )
    print(f"new / old {statistics.median(ratios):.3f} of {flags.rounds} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
