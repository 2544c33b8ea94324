"""Does the sm_90a bundle train as the CPU's does? Needs one NVIDIA GPU.

    python benchmarks/gpu_check.py                      # compiles both modules first
    python benchmarks/gpu_check.py --bundle both.pcp    # only runs

Trains examples/models/nanogpt_small.mlir for 20 steps of AdamW on the GPU and on the
CPU, from the same weights on the same batches, compares the losses (1e-3) and prints
the time of a step. Without a CUDA device it says so and exits 0. The bundle needs no
GPU to be compiled; running a ready one needs only what `pip install -e .` installs.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import pcp.runtime.program.executor as executor
from pcp.errors import PcpError

MODEL = Path(__file__).parent.parent / "examples" / "models" / "nanogpt_small.mlir"
STEPS, TOLERANCE = 20, 1e-3
GPU, CPU = "sm_90a", "cpu"


@dataclass(frozen=True)
class Run:
    """Losses and seconds of each step."""

    losses: list[float]
    seconds: list[float]


def compile_both(model: Path, path: Path) -> Path:
    """A train bundle with a module for the GPU and one for the CPU."""
    from pcp.compiler.driver import compile as compile_bundle
    from pcp.compiler.options import CompileOptions
    from pcp.dialect.context import read

    options = CompileOptions(
        targets=(GPU, CPU),
        mode="train",
        optimizer="adamw{lr=1e-3}",
        algorithm="none",
        source=str(model),
        report=lambda line: print(f"  {line}"),
    )
    compile_bundle(read(model), options).write(path)
    return path


def first_values(bundle: Path) -> Sequence[np.ndarray]:
    """@init's parameters and state, made on the CPU for both."""
    with executor.Program.load(bundle, "local-sync", module=CPU) as program:
        return program["init"](np.int64(0))


def train(
    bundle: Path, device: executor.Device, module: str, first: Sequence[np.ndarray]
) -> Run:
    """Train from these values on random tokens, the same for every device."""
    random = np.random.default_rng(0)
    losses, seconds = [], []
    with executor.Program.load(bundle, device, module=module) as program:
        inputs = program.manifest.function("grad").inputs
        data = [spec for spec in inputs if spec.role == "data"]
        count = len(inputs) - len(data)
        values = [program.to_device(x) for x in first]
        for _ in range(STEPS):
            batch = [
                program.to_device(random.integers(0, 64, spec.shape)) for spec in data
            ]
            begin = time.perf_counter()
            loss, *grads = program["grad"](*values[:count], *batch, device_arrays=True)
            values = list(
                program["apply"](
                    *values[:count], *grads, *values[count:], device_arrays=True
                )
            )
            losses.append(float(loss.numpy()))
            seconds.append(time.perf_counter() - begin)
    return Run(losses, seconds)


def gpu_device() -> executor.Device | None:
    """The first CUDA device, or None; says why."""
    try:
        return executor.open_device("cuda")
    except PcpError as error:
        print(f"no CUDA device here, nothing to check: {error}")
        return None


def main(arguments: Sequence[str]) -> int:
    """0 when the losses agree or there is no GPU, 1 when they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--bundle", type=Path, help=f"with modules {GPU} and {CPU}")
    options = parser.parse_args(arguments)
    if (device := gpu_device()) is None:
        return 0
    with tempfile.TemporaryDirectory(prefix="pcp-gpu-") as folder:
        bundle = options.bundle or compile_both(
            options.model, Path(folder) / "both.pcp"
        )
        first = first_values(bundle)
        on_gpu = train(bundle, device, GPU, first)
        on_cpu = train(bundle, executor.open_device("local-task"), CPU, first)
    worst = max(abs(a - b) for a, b in zip(on_gpu.losses, on_cpu.losses, strict=True))
    for name, run in ((GPU, on_gpu), (CPU, on_cpu)):
        middle = median(run.seconds[1:]) * 1e3
        print(f"{name:8}{run.losses[0]:.4f} -> {run.losses[-1]:.4f}, {middle:.2f} ms")
    agrees = worst <= TOLERANCE
    print(f"losses differ by {worst:.1e}: {'agrees' if agrees else 'DIFFERS'}")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
