"""A batch shared by rate against equal parts, with one worker three times slower.

    python benchmarks/uneven.py            # two processes, shares 3:1 against 1:1

The slow worker goes on using the processor after each step until it has had three
times the seconds of it that the step cost, so that it is as much slower on a machine
that does other work too. Nothing else is emulated: both are processes that exchange
gradients over TCP. Runs of both kinds take turns; the figure is the ratio of the median
seconds a step, first steps left out. Two cores are needed, or the slow worker's work
takes time from the other one.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

from mesh_members import compile_bundle, network, run_members

SLOW = 3.0
SHARES = {"even": (1, 1), "uneven": (3, 1)}


def compile_shares(
    folder: Path, *, batch: int, layers: int, width: int
) -> dict[str, Path]:
    """The same model with the batch cut in equal parts, and 3:1."""
    bundles = {}
    for name, (a, b) in SHARES.items():
        mesh = (
            '"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = '
            f'"mesh", split = #pcp.split<"dp", [{a}, {b}]>}} : () -> ()'
        )
        text = network(layers, width, 2 * width, batch, mesh)
        bundles[name] = compile_bundle(text, folder, name, ["--sharding", "auto"])
    return bundles


def compare(bundles: dict[str, Path], turns: int, steps: int) -> dict[str, float]:
    """Median seconds a step of each kind; the second worker is the slow one."""
    seconds: dict[str, list[float]] = {name: [] for name in bundles}
    for _ in range(turns):
        for name, bundle in bundles.items():
            first, _ = run_members(bundle, steps, {1: SLOW})
            seconds[name] += first.seconds[1:]
    return {name: median(found) for name, found in seconds.items()}


def main() -> None:
    """Print the seconds and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"batch": flags.batch, "layers": flags.layers, "width": flags.width}
        bundles = compile_shares(Path(folder), **sizes)
        found = compare(bundles, flags.turns, flags.steps)
    for name, seconds in found.items():
        print(f"{name:7} {1000 * seconds:8.1f} ms a step")
    print(f"uneven is {found['even'] / found['uneven']:.2f} times as fast")


if __name__ == "__main__":
    main()
