"""Memory of each ZeRO stage on real processes: what a member holds, and its peak.

    python benchmarks/zero_memory.py                       # four processes, 12 layers
    python benchmarks/zero_memory.py --layers 24 --stages 3

Bytes are those of the device's allocator, without a cache, as multiples of the whole
parameters and optimizer state (AdamW). The peak is that of training steps: gradients,
activations and gathered parameters come on top of what is held.
"""

import argparse
import tempfile
from pathlib import Path

from mesh_members import Report, compile_bundle, network, run_members

from pcp.bundle import Bundle
from pcp.training.trainer.step_loop import kept


def measure(
    stage: int, folder: Path, *, members: int, batch: int, layers: int, width: int
) -> tuple[int, list[Report]]:
    """(bytes of whole parameters and state, each member's report) of a stage."""
    text = network(layers, width, 2 * width, batch)
    flags = ["--mesh", f"dp={members}", *(["--zero", str(stage)] if stage else [])]
    bundle = compile_bundle(text, folder, f"zero{stage}", flags)
    whole = sum(spec.nbytes for spec in kept(Bundle.read(bundle).manifest))
    return whole, run_members(bundle, steps=2)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    sizes = vars(parser.parse_args())
    stages = sizes.pop("stages")
    print("stage  held  peak  loss after a step")
    with tempfile.TemporaryDirectory() as folder:
        for stage in stages:
            whole, reports = measure(stage, Path(folder), **sizes)
            held = max(report.held for report in reports) / whole
            peak = max(report.peak for report in reports) / whole
            print(f"{stage:5}  {held:.3f} {peak:.3f} {reports[0].losses[1]:.6f}")


if __name__ == "__main__":
    main()
