"""Processor seconds of `pcp-compile`: with an empty cache, with modules, with bundles.

    python benchmarks/compile_cost.py --rounds 2

The ZeRO-3 example of docs/tour.md and the small GPT for one device, each in processes
of their own as a user starts them, children (IREE) included.
"""

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = Path(__file__).parents[1] / "examples/models/nanogpt_small.mlir"
CASES = {
    "small": ("--target", "cpu"),
    "zero-3": ("--target", "cpu", "--mode", "train", "--mesh", "dp=2", "--zero", "3"),
}


def measure(words: tuple[str, ...], folder: Path) -> float:
    """Processor seconds of one command, user's and system's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pcp.tools.compile", str(MODEL), *words, "-q"]
    command += ["--cache", str(folder / "cache"), "-o", str(folder / "out.pcp")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors")
    print("| case | empty cache | modules kept | bundle kept |")
    print("|---|---|---|---|")
    for name, words in CASES.items():
        best = [float("inf")] * 3
        for _ in range(rounds):
            folder = Path(tempfile.mkdtemp())
            cold = measure(words, folder)
            for path in (folder / "cache").glob("*/*.bundle"):
                path.unlink()
            found = (cold, measure(words, folder), measure(words, folder))
            best = [min(pair) for pair in zip(best, found, strict=True)]
            shutil.rmtree(folder)
        print(f"| {name} | {' | '.join(f'{seconds:.2f} s' for seconds in best)} |")


if __name__ == "__main__":
    main()
