"""The planner against the machine: predicted memory, and the plan it would take.

    pcp probe --devices 2 -o cluster.json
    python benchmarks/planner.py memory --cluster cluster.json
    python benchmarks/planner.py build --cluster cluster.json --cache folder
    python benchmarks/planner.py time --cluster cluster.json --cache folder
    python benchmarks/planner.py loops --cluster cluster.json

`memory` trains a few plans, a process for each device, and compares the most bytes
that IREE's allocator held in one of them with the prediction. `time` compiles several
plans for each of ten models, keeps all their processes waiting, lets them step in
turn, and compares the plan that the planner takes with the fastest of all of them.
`build` only compiles what `time` needs, so that this can be left to a quiet hour.
`loops` compares the gradient of layers by scan with that of the layers written out.

Needs what `pip install -e '.[compiler,jax]'` installs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from planner_models import gpt, mlp  # noqa: E402

from pcp.compiler import driver  # noqa: E402
from pcp.compiler.cluster import Cluster  # noqa: E402
from pcp.compiler.options import CompileOptions  # noqa: E402
from pcp.dialect.context import parse  # noqa: E402
from pcp.passes.planning.candidates import Candidate  # noqa: E402
from pcp.passes.planning.evaluation import Judged  # noqa: E402
from pcp.passes.planning.plan import Choice  # noqa: E402
from pcp.runtime.memory.dtypes import numpy_dtype  # noqa: E402
from pcp.runtime.program.executor import Program  # noqa: E402

OPTIMIZER = "adamw{lr=1e-3}"

#: Model -> (its text, the plan to measure), for the memory.
MEMORY = {
    "gpt 128, dp=2": (gpt, (2, 128, 16, 64), "dp=2"),
    "gpt 128, dp=2 zero=1": (gpt, (2, 128, 16, 64), "dp=2 zero=1"),
    "gpt 256, dp=2 zero=3": (gpt, (2, 256, 2, 64), "dp=2 zero=3"),
    "gpt 256, tp=2": (gpt, (2, 256, 4, 64), "tp=2"),
    "mlp 1024, dp=2 zero=2": (mlp, (4, 1024, 64), "dp=2 zero=2"),
    "mlp 512, dp=1": (mlp, (4, 512, 2048), "dp=1"),
    "gpt 192, dp=2 zero=3": (gpt, (3, 192, 2, 64), "dp=2 zero=3"),
    "gpt 128, tp=2": (gpt, (2, 128, 8, 64), "tp=2"),
    "mlp 768, dp=2 zero=3": (mlp, (4, 768, 128), "dp=2 zero=3"),
    "gpt 256, pp=2 1f1b": (gpt, (2, 256, 8, 64), "pp=2 microbatches=8 1f1b"),
    "gpt 256, pp=2 gpipe": (gpt, (2, 256, 8, 64), "pp=2 microbatches=8 gpipe"),
    "mlp 512, pp=2": (mlp, (4, 512, 2048), "pp=2 microbatches=8 1f1b"),
}

TIME = {
    "mlp 256 x 4096": (mlp, (3, 256, 4096)),
    "mlp 1024 x 16": (mlp, (4, 1024, 16)),
    "mlp 512 x 256": (mlp, (4, 512, 256)),
    "mlp 64 x 32": (mlp, (2, 64, 32)),
    "gpt 128 x 16 x 64": (gpt, (2, 128, 16, 64)),
    "gpt 256 x 2 x 32": (gpt, (2, 256, 2, 32)),
    "gpt 256 x 8 x 64": (gpt, (1, 256, 8, 64)),
    "gpt 64 x 2 x 32": (gpt, (2, 64, 2, 32)),
    "mlp 8 layers 512 x 64": (mlp, (8, 512, 64)),
    "gpt 4 layers 128 x 8 x 64": (gpt, (4, 128, 8, 64)),
}

#: Of each gradient of a GPT: layers, width, batch, tokens.
LOOPS = ((4, 64, 4, 64), (8, 64, 4, 64), (12, 64, 4, 64))


def level(path: Path, folder: Path) -> Path:
    """The cluster with all devices as fast as the fastest: they are equal cores."""
    cluster = Cluster.read(path)
    every = list(cluster.devices.values())
    alike = {
        "throughput": max((d.throughput for d in every), key=lambda t: t["f32"]),
        "membw": max(d.membw for d in every),
        "overhead_ns": min(d.overhead_ns for d in every),
        "alone": max(
            (d.alone for d in every if d.alone),
            key=lambda rates: rates.throughput["f32"],
            default=None,
        ),
    }
    devices = {n: d.model_copy(update=alike) for n, d in cluster.devices.items()}
    written = folder / "cluster.json"
    written.write_text(cluster.model_copy(update={"devices": devices}).to_json())
    return written


def search(text: str, cluster: Path) -> Choice:
    """All plans that are judged for a model."""
    options = CompileOptions(cluster=cluster, mode="train", optimizer=OPTIMIZER)
    return driver.plan(parse(text), options, keep=24)


@dataclass(frozen=True)
class Place:
    """The cluster file, and where bundles and IREE's modules are kept."""

    cluster: Path
    folder: Path
    cache: Path | None = None


def build(text: str, choice: Choice, plan: Candidate, place: Place) -> Path:
    """The bundle of one plan, by the flags that ask for it."""
    sharding = None
    if tensors := choice.sharding(plan):
        sharding = place.folder / "sharding.json"
        sharding.write_text(json.dumps({"tensors": tensors}))
    axes = ",".join(f"{axis}={n}" for axis, n in plan.axes.items())
    options = CompileOptions(
        targets=("cpu:host",),
        mode="train",
        optimizer=OPTIMIZER,
        mesh=axes,
        microbatches=plan.microbatches if plan.pp > 1 else None,
        schedule=plan.schedule if plan.pp > 1 else None,
        zero=plan.zero if plan.dp > 1 else 0,
        sharding=str(sharding) if sharding else None,
        jobs=2,
        cache=place.cache,
    )
    path = place.folder / f"{str(plan).replace(' ', '-')}-{plan.groups}.pcp"
    driver.compile(parse(text), options).write(path)
    return path


# --- processes ---


@dataclass
class Members:
    """The processes of one plan, waiting for numbers of steps."""

    processes: list["subprocess.Popen[str]"]

    @classmethod
    def start(
        cls,
        bundle: Path,
        count: int,
        address: str = "127.0.0.1:0",
        inside: Sequence[Sequence[str]] = (),
    ) -> "Members":
        """Start them and make the first step; `inside` are commands in front of each's.

        The first one listens at `address`.
        """
        members = cls([])
        for rank in range(count):
            command = [*inside[rank]] if inside else []
            command += [sys.executable, str(HERE / "planner_member.py"), str(bundle)]
            process = subprocess.Popen(
                [*command, str(rank), address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            members.processes.append(process)
            if rank == 0:
                assert process.stdout
                address = process.stdout.readline().strip()
        members.step(1)
        return members

    def step(self, count: int) -> list[dict[str, float]]:
        """Let all of them make steps; what each one says."""
        for process in self.processes:
            assert process.stdin
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
        answers = []
        for process in self.processes:
            assert process.stdout
            answers.append(json.loads(process.stdout.readline()))
        return answers

    def close(self) -> None:
        """End them."""
        for process in self.processes:
            assert process.stdin
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# --- memory ---


def memory(place: Place, only: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Predicted and measured bytes of the fullest member."""
    print(f"{'plan':24} {'predicted':>10} {'measured':>10}  ratio   (MiB)")
    for name, (model, sizes, wanted) in MEMORY.items():
        if only and not any(word in name for word in only):
            continue
        text = model(*sizes)
        choice = search(text, place.cluster)
        judged = _find(choice, wanted)
        bundle = build(text, choice, judged.candidate, place)
        members = Members.start(bundle, len(judged.candidate.devices))
        try:
            measured = max(answer["peak"] for answer in members.step(2))
        finally:
            members.close()
        ratio = judged.memory / measured
        print(
            f"{name:24} {judged.memory / 2**20:10.1f} {measured / 2**20:10.1f} "
            f"{ratio:6.2f}",
            flush=True,
        )
        yield {"plan": name, "predicted": judged.memory, "measured": measured}


def _find(choice: Choice, wanted: str) -> Judged:
    """The fastest plan of that name."""
    for j in choice.judged:
        if str(j.candidate) == wanted:
            return j
    known = ", ".join(str(j.candidate) for j in choice.judged)
    raise SystemExit(f"no plan {wanted} (judged: {known})")


# --- time ---


def contenders(choice: Choice, most: int) -> list[Judged]:
    """The best of every kind of plan, then the next ones."""
    first: dict[tuple, Judged] = {}
    for j in choice.judged:
        c = j.candidate
        first.setdefault((c.pp, c.dp, c.tp, min(c.zero, 1)), j)
    return list(dict.fromkeys([*first.values(), *choice.judged]))[:most]


def builds(place: Place, most: int, only: Sequence[str]) -> None:
    """Compile the contenders."""
    for name, (model, sizes) in TIME.items():
        if only and not any(word in name for word in only):
            continue
        text = model(*sizes)
        choice = search(text, place.cluster)
        print(name, *choice.lines(), sep="\n", flush=True)
        for j in contenders(choice, most):
            build(text, choice, j.candidate, place)


def times(
    place: Place, most: int, rounds: int, only: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """For each model, predicted and measured time of every contender."""
    for name, (model, sizes) in TIME.items():
        if only and not any(word in name for word in only):
            continue
        text = model(*sizes)
        choice = search(text, place.cluster)
        some = contenders(choice, most)
        measured = _race(text, choice, some, place, rounds)
        best = min(measured)
        taken = measured[some.index(choice.best)]
        for j, seconds in zip(some, measured, strict=True):
            mark = "taken" if j is choice.best else ""
            predicted = 1e3 * j.cost.seconds
            title = str(j.candidate) + f" cut={j.candidate.groups}" * (
                j.candidate.tp > 1
            )
            print(f"  {title:34} {predicted:9.2f} {1e3 * seconds:9.2f}  {mark}")
        print(f"{name}: taken / best = {taken / best:.2f}", flush=True)
        yield {
            "model": name,
            "ratio": taken / best,
            "plans": {
                f"{j.candidate} {j.candidate.groups}": [j.cost.seconds, seconds]
                for j, seconds in zip(some, measured, strict=True)
            },
        }


def _race(
    text: str, choice: Choice, some: Sequence[Judged], place: Place, rounds: int
) -> list[float]:
    """Seconds of a step of each, the median over rounds in turn."""
    running: list[Members] = []
    found: list[list[float]] = [[] for _ in some]
    try:
        for j in some:
            bundle = build(text, choice, j.candidate, place)
            running.append(Members.start(bundle, len(j.candidate.devices)))
        for _ in range(rounds):
            for members, seconds in zip(running, found, strict=True):
                seconds.append(max(a["seconds"] for a in members.step(3)))
    finally:
        for members in running:
            members.close()
    return [median(seconds) for seconds in found]


# --- loops ---


def loops(place: Place, rounds: int) -> Iterator[dict[str, Any]]:
    """Time of a scan's gradient over that of the layers written out."""
    print(f"{'gradient':16} {'predicted':>10} {'measured':>10}  scan / written out")
    for sizes in LOOPS:
        texts = [gpt(*sizes, scanned=scanned) for scanned in (False, True)]
        guessed = [_guessed(text, place) for text in texts]
        calls = [_gradient(text, place) for text in texts]
        times = [[_processor_seconds(call) for call in calls] for _ in range(rounds)]
        found = [median(each) for each in zip(*times, strict=True)]
        ratios = {"predicted": guessed[1] / guessed[0], "measured": found[1] / found[0]}
        name = f"gpt {sizes[0]} x {sizes[1]}"
        print(f"{name:16} {ratios['predicted']:10.2f} {ratios['measured']:10.2f}")
        yield {"gradient": name, **ratios}


def _guessed(text: str, place: Place) -> float:
    options = CompileOptions(cluster=place.cluster, mode="grad")
    return driver.plan(parse(text), options, axes={"dp": 1}).best.cost.seconds


def _gradient(text: str, place: Place) -> Callable[[], Any]:
    """A call of it, on one thread."""
    options = CompileOptions(("cpu:host",), mode="grad", cache=place.cache)
    bundle = driver.compile(parse(text), options)
    specs = bundle.manifest.function("grad").inputs
    given = [np.zeros(t.shape, numpy_dtype(t.dtype)) for t in specs]
    program = Program.load(bundle, device="local-sync")
    return lambda: program["grad"](*given)


def _processor_seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("memory", "time", "build", "loops"))
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plans", type=int, default=5, help="of each model")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep what IREE makes"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", default=(), help="by a word of their name")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pcp-planner-") as name:
        folder = Path(name)
        place = Place(level(flags.cluster, folder), folder, flags.cache)
        rows: list[dict[str, Any]] = []
        if flags.what == "memory":
            rows = list(memory(place, flags.only))
        elif flags.what == "build":
            builds(place, flags.plans, flags.only)
        elif flags.what == "loops":
            rows = list(loops(place, flags.rounds))
        else:
            rows = list(times(place, flags.plans, flags.rounds, flags.only))
    if flags.json:
        flags.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
