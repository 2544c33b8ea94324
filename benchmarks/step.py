"""One training step of pcp against JAX and PyTorch, on this machine's processor.

    python benchmarks/step.py                      # the small GPT
    python benchmarks/step.py --size medium        # 4 layers, d=256
    python benchmarks/step.py --size vocabulary    # the same, 8192 tokens
    python benchmarks/step.py --size large         # 12 layers, d=512
    python benchmarks/step.py --json step.json --contestants pcp,jax
    python benchmarks/step.py --size medium --contestants pcp,pcp-tuned,torch
    python benchmarks/step.py --processes 2        # data parallel, beside PyTorch's DDP

Forward, backward and AdamW of the same GPT from the same weights on the same batch.
Each contestant runs in a process of its own and waits while the others run; they take
turns, so that what else the machine does hits all of them. What is known so far is
printed after each round, so that a run that is cut short has a table. All have huge
pages for their heaps, as processes that pcp starts do. The losses of the first steps
are compared before any time is believed. `processor` is the median of what all threads
of a step used together: it says less about waiting, and more about work, than the clock
does on a machine that is busy with other things. Memory is the peak resident set above
what importing the contestant's libraries took.

Needs what `pip install -e '.[torch,jax]'` installs; a contestant that is missing or
fails is reported as such, with the reason.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import two_processes
from contestants import COMPARED, CONTESTANTS, ON_CUDA, SIZES, Size, prepare

from pcp.training.process.huge_pages import with_huge_pages

HERE = Path(__file__).resolve().parent
TOLERANCE = 2e-4  # relative, between any two contestants
START_S, TURN_S = 600, 300  # deadlines


# --- in the contestant's process ---


def serve(name: str, folder: Path, size: Size) -> None:
    """Answer each line, a number of steps, with their losses and times."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries may print
    _import(name)
    on_cuda = name in ON_CUDA
    before = 0 if on_cuda else _resident()
    step = (CONTESTANTS | ON_CUDA | two_processes.TWO)[name](folder, size)
    for line in sys.stdin:
        losses, seconds, processor = [], [], []
        for _ in range(int(line)):
            start, used = time.perf_counter(), time.process_time()
            losses.append(step())
            seconds.append(time.perf_counter() - start)
            processor.append(time.process_time() - used)
        peak = on_card() if on_cuda else _resident("VmHWM") - before
        answer = {
            "losses": losses,
            "seconds": seconds,
            "processor": processor,
            "bytes": peak,
        }
        print(json.dumps(answer), file=answers, flush=True)


def _import(name: str) -> None:
    """Load the libraries, and wake them, before memory is counted."""
    if name.startswith("pcp"):
        import pcp.runtime.program.executor  # noqa: F401
    elif name.startswith("jax"):
        import jax

        jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
    else:
        import torch

        torch.ones(2).sum().item()


def _resident(what: str = "VmRSS") -> int:
    """Bytes of this process in memory, now or (VmHWM) at its peak.

    Not getrusage: its peak is inherited from the process that started this one.
    """
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {what}")


def on_card() -> int:
    """Bytes of the GPU that this process has, its context included."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory"]
    command.append("--format=csv,noheader,nounits")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        process, _, mebibytes = line.partition(",")
        if process.strip() == str(os.getpid()):
            return int(mebibytes) << 20
    return 0


# --- in the process that compares ---


@dataclass
class Runner:
    """A contestant's process, and what it has answered so far."""

    name: str
    process: subprocess.Popen[str]
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    bytes: int = 0
    problem: str = ""

    def turn(self, steps: int, *, counted: bool = True) -> None:
        """Run `steps` steps; the first of a turn wakes caches and is not counted."""
        if self.problem:
            return
        assert self.process.stdin
        assert self.process.stdout
        try:
            print(steps, file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
            answer = json.loads(line)
        except (BrokenPipeError, json.JSONDecodeError):
            self.problem = f"stopped: {self._last_words()}"
            return
        self.losses += answer["losses"]
        if counted:
            self.seconds += answer["seconds"][1:]
            self.processor += answer["processor"][1:]
        self.bytes = answer["bytes"]

    def _last_words(self) -> str:
        _, stderr = self.process.communicate(timeout=TURN_S)
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"exit {self.process.returncode}"


def start(name: str, folder: Path, size: Size) -> Runner:
    """Start a contestant's process."""
    command = [sys.executable, str(HERE / "step.py"), "--contestant", name]
    command.append(str(folder))
    process = subprocess.Popen(
        [*command, json.dumps(size.__dict__)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=with_huge_pages(os.environ),
    )
    return Runner(name, process)


def compete(
    names: Sequence[str], folder: Path, size: Size, rounds: int, steps: int
) -> list[Runner]:
    """Let them take turns."""
    runners = []
    try:
        for name in names:
            runners.append(start(name, folder, size))
            runners[-1].turn(COMPARED, counted=False)
        for _ in range(rounds):
            for runner in runners:
                runner.turn(steps + 1)
            show(summary(runners, size))
    finally:
        for runner in runners:
            runner.process.kill()
            runner.process.communicate()
    return runners


def disagreement(runners: Sequence[Runner]) -> float:
    """The largest relative difference of two contestants' first losses."""
    curves = [r.losses[:COMPARED] for r in runners if not r.problem]
    steps = zip(*curves, strict=True)
    return max(((max(s) - min(s)) / abs(min(s)) for s in steps), default=0.0)


def summary(runners: Sequence[Runner], size: Size) -> dict[str, Any]:
    """Everything measured, for `--json` and for the table."""
    good = [r for r in runners if r.seconds]
    peers = [median(r.seconds) for r in good if not r.name.startswith("pcp")]
    rows = []
    for runner in runners:
        if not runner.seconds:
            rows.append({"name": runner.name, "problem": runner.problem})
            continue
        middle = median(runner.seconds)
        rows.append(
            {
                "name": runner.name,
                "median_s": middle,
                "fastest_s": min(runner.seconds),
                "processor_s": median(runner.processor),
                "ratio_to_fastest_peer": middle / min(peers) if peers else None,
                "peak_bytes": runner.bytes,
                "losses": runner.losses[:COMPARED],
                "steps": len(runner.seconds),
            }
        )
    return {
        "size": size.__dict__,
        "loss_disagreement": disagreement(runners),
        "contestants": rows,
    }


def show(result: dict[str, Any]) -> None:
    """The table."""
    print(
        f"{'':15}{'median':>10}{'fastest':>10}{'processor':>11}{'ratio':>8}{'memory':>11}"
    )
    for row in result["contestants"]:
        if "problem" in row:
            print(f"{row['name']:15}{row['problem']}")
            continue
        ratio = row["ratio_to_fastest_peer"]
        print(
            f"{row['name']:15}{row['median_s'] * 1e3:7.1f} ms"
            f"{row['fastest_s'] * 1e3:7.1f} ms"
            f"{row['processor_s'] * 1e3:8.1f} ms"
            + (f"{ratio:8.2f}" if ratio else f"{'':8}")
            + f"{row['peak_bytes'] / 2**20:7.0f} MiB"
        )
    print(
        f"losses of the first {COMPARED} steps agree to "
        f"{result['loss_disagreement']:.1e}",
        flush=True,
    )


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and run; 1 when the losses disagree."""
    if arguments[:1] == ["--contestant"]:
        _, name, folder, size = arguments
        serve(name, Path(folder), Size(**json.loads(size)))
        return 0
    options = _options(arguments)
    size = _size(options)
    with tempfile.TemporaryDirectory(prefix="pcp-step-") as place:
        folder = Path(place)
        names = options.contestants.split(",")
        print(size)
        if options.processes == two_processes.PROCESSES:
            two_processes.prepare(folder, size, _say)
        else:
            prepare(folder, size, _say, tuned="pcp-tuned" in names)
        runners = compete(names, folder, size, options.rounds, options.steps)
    result = summary(runners, size)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))
    if result["loss_disagreement"] > TOLERANCE:
        print(f"the losses differ by more than {TOLERANCE}: no time is comparable")
        return 1
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="small")
    for name, kind in Size.__annotations__.items():
        parser.add_argument(f"--{name}", type=kind, help="instead of the size's own")
    parser.add_argument("--contestants", help="some of them, with commas")
    help_ = "2: data parallel, each with a thread and half of the batch"
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1, help=help_)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5, help="counted, in a turn")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    options = parser.parse_args(arguments)
    known = two_processes.TWO if options.processes == 2 else CONTESTANTS
    usual = [name for name in known if name != "pcp-tuned"]  # takes a minute
    options.contestants = options.contestants or ",".join(usual)
    if unknown := set(options.contestants.split(",")) - set(known):
        parser.error(f"unknown: {', '.join(unknown)} (of {', '.join(known)})")
    return options


def _say(line: str) -> None:
    print(f"  {line}")


def _size(options: argparse.Namespace) -> Size:
    given = {name: getattr(options, name) for name in Size.__annotations__}
    return replace(SIZES[options.size], **{k: v for k, v in given.items() if v})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
