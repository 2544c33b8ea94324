"""Training steps of pcp on an NVIDIA GPU against JAX and PyTorch on the same card.

    python benchmarks/gpu_check.py prepare FOLDER             # here; needs no GPU
    python benchmarks/gpu_check.py run FOLDER --json found.json      # where one is

`prepare` compiles the train bundles of the GPTs of benchmarks/step.py for the card.
`run` draws the weights and batches and lets pcp, JAX and PyTorch train from them, each
in a process of its own, in turns; it needs what `pip install -e .` installs, and torch
and JAX for CUDA beside it. The losses of the first steps are compared first, all with
those of PyTorch with plain f32 products; a contestant whose losses are others has no
time. A step ends when all its work is done. Memory is what nvidia-smi says that a
process has, the 500 MB of a CUDA context included.

Without a CUDA device `run` says so and gives 0.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import contestants
from contestants import ON_CUDA, SIZES, Size
from step import COMPARED, Runner, start

import pcp.runtime.program.executor as executor
from pcp.errors import PcpError

TARGET = "sm_90a"
JOBS = "small,medium,gpt2,gpt2-bf16"
REFERENCE = "torch@cuda"

TOLERANCES = {"f32": 1e-3, "bf16": 2e-2}
"""Relative, of a loss to the reference's."""


def size_of(job: str) -> Size:
    """`medium`, or `medium-bf16`."""
    name, _, compute = job.partition("-")
    return replace(SIZES[name], compute=compute or "f32")


def prepare(folder: Path, jobs: Sequence[str], target: str) -> None:
    """Compile what is not there yet; weights are drawn again where it runs."""
    for job in jobs:
        place = folder / job
        if (place / "step.pcp").exists():
            continue
        place.mkdir(parents=True, exist_ok=True)
        contestants.prepare(
            place, size_of(job), lambda line: print(f"  {line}"), target
        )
        (place / "job.npz").unlink()
        print(f"{job}: {(place / 'step.pcp').stat().st_size} bytes", flush=True)


def run(
    folder: Path, jobs: Sequence[str], names: Sequence[str], steps: int
) -> dict[str, Any]:
    """Job by job; its contestants start at once and take turns one by one."""
    found = {}
    for job in jobs:
        place, size = folder / job, size_of(job)
        if not (place / "job.npz").exists():
            contestants.draw(place, size)
        runners = [start(name, place, size) for name in names]
        try:
            for runner in runners:
                began = time.monotonic()
                runner.turn(COMPARED, counted=False)
                ready = time.monotonic() - began
                print(f"  {runner.name}: {ready:.1f} s until its first steps are done")
                sys.stdout.flush()
            for _ in range(2):
                for runner in runners:
                    runner.turn(steps + 1)
            found[job] = _summary(runners, size)
            _show(job, found[job])
        finally:
            for runner in runners:
                runner.process.kill()
                runner.process.communicate()
        (place / "job.npz").unlink()
    return found


def _summary(runners: Sequence[Runner], size: Size) -> dict[str, Any]:
    reference = next((r.losses for r in runners if r.name == REFERENCE), [])
    rows: dict[str, Any] = {}
    for runner in runners:
        row: dict[str, Any] = {"losses": runner.losses[:COMPARED]}
        rows[runner.name] = row
        if runner.problem or not runner.seconds:
            row["problem"] = runner.problem
            continue
        row["ms"] = median(runner.seconds) * 1e3
        row["fastest_ms"] = min(runner.seconds) * 1e3
        row["MiB"] = runner.bytes >> 20
        pairs = zip(runner.losses, reference[:COMPARED], strict=False)
        row["off"] = max((abs(a - b) / abs(b) for a, b in pairs), default=0.0)
        if not row["off"] <= TOLERANCES[size.compute]:
            row["problem"] = f"losses differ by {row['off']:.1e}"
    return {"size": size.__dict__, "contestants": rows}


def _show(job: str, found: dict[str, Any]) -> None:
    rows = found["contestants"]
    print(f"{job}: {Size(**found['size'])}")
    ours = rows.get("pcp@cuda", {}).get("ms")
    for name, row in rows.items():
        if "ms" not in row:
            print(f"  {name:20}{row['problem']}")
            continue
        ratio = f"{ours / row['ms']:6.2f}" if ours else ""
        print(
            f"  {name:20}{row['ms']:9.2f} ms (least {row['fastest_ms']:.2f})  pcp/this "
            f"{ratio}  {row['MiB']:6} MiB  {row['off']:.1e} {row.get('problem', '')}"
        )
    sys.stdout.flush()


def card() -> str:
    """The card and its driver, as nvidia-smi names them."""
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    query = "--query-gpu=name,driver_version,memory.total"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False
    ).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """0 when all losses agree or there is no GPU, 1 when some do not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", default=JOBS, help="sizes of step.py, with -bf16")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--contestants", default=",".join(ON_CUDA))
    parser.add_argument("--steps", type=int, default=20, help="counted, in a turn")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    options = parser.parse_args(arguments)
    jobs = options.jobs.split(",")
    if options.what == "prepare":
        prepare(options.folder, jobs, options.target)
        return 0
    try:
        executor.open_device("cuda")
    except PcpError as error:
        print(f"no CUDA device here, nothing to check: {error}")
        return 0
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    print(card())
    names = options.contestants.split(",")
    found = run(options.folder, jobs, names, options.steps)
    if options.json:
        options.json.write_text(json.dumps({"card": card(), "jobs": found}, indent=1))
    rows = [r for job in found.values() for r in job["contestants"].values()]
    return int(any("problem" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
