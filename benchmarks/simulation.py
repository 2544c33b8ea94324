"""Is `pcp simulate` right? And what it says of runs that fit on no desk.

    python benchmarks/simulation.py validate       # against real runs; needs root
    python benchmarks/simulation.py tables         # up to 4,096 workers, on paper
    python benchmarks/simulation.py islands        # of 8 devices, up to 512 of them

`validate` trains with 2, 4 and 8 real worker processes, each in a network namespace of
its own (`wan`), and simulates the same. The model is told what was measured apart from
these runs: the seconds of an inner step and how they vary, by as many processes as
there will be workers, which only compute; and the rate and the round trip of the
network, which are as they were set. The figure compared is the median of a round's
seconds; runs and measurements of the compute take turns.

`tables` prints seconds a round, bytes sent and goodput against the number of workers,
the bandwidth and the lifetime of a worker. `islands` prints the same for islands whose
ranks live an hour, with the coordinator's processor seconds a round and its memory.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from emulated_run import Net, bundle, experiment, train
from wan import can_emulate

from pcp.bundle import Bundle
from pcp.errors import StateMismatch
from pcp.training.config.experiment import (
    Experiment,
)
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.data.corpus import Corpus
from pcp.training.simulate.inside_exchange import InsideExchange
from pcp.training.simulate.network_model import World
from pcp.training.simulate.simulation import Figures, simulate
from pcp.training.trainer.load import load

WIDTH, LAYERS, BLOCK, BATCH = 64, 2, 64, 4
STEPS, ROUNDS, SKIPPED = 20, 14, 2
NET = Net(rate=4e6, rtt=0.04)
ALGORITHM = "diloco"
TOLERANCE = 0.15


# --- against real runs ---


@dataclass(frozen=True)
class Pace:
    """Measured inner steps: seconds of one; how processes, and their rounds, vary."""

    seconds: float
    spread: float
    jitter: float


def pace(values: dict[str, Any], workers: int) -> Pace:
    """Of `workers` processes that do nothing but inner steps, all at the same time."""
    with tempfile.TemporaryDirectory() as name:
        config, go = Path(name, "x.json"), Path(name, "go")
        config.write_text(json.dumps(values))
        command = [sys.executable, __file__, "steps", str(config), str(go)]
        members = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(workers)
        ]
        try:
            for member in members:
                _line(member)  # it is ready
            go.touch()
            rounds = np.array([json.loads(_line(member)) for member in members])
        finally:
            for member in members:
                member.kill()
                member.wait()
    steps = rounds / STEPS
    means = steps.mean(axis=1)
    return Pace(
        seconds=float(steps.mean()),
        spread=float(means.std() / means.mean()),
        jitter=float((steps.std(axis=1) / means).mean()),
    )


def _line(member: subprocess.Popen[str]) -> str:
    assert member.stdout is not None
    if not (line := member.stdout.readline()):
        raise RuntimeError("a process that measures ended early")
    return line


def make_steps(config: str, go: str, rank: str) -> None:
    """One measuring process: prints the seconds of rounds of inner steps."""
    settings = parse(json.loads(Path(config).read_text()))
    trainer = load(Bundle.read(settings.model_path), "local-sync", None)
    corpus = Corpus(settings, trainer.inputs)
    trainer.fresh(0)
    _round(trainer, corpus, int(rank))
    print("ready", flush=True)
    while not Path(go).exists():
        time.sleep(0.001)
    seconds = []
    for _ in range(5):
        began = time.monotonic()
        _round(trainer, corpus, int(rank))
        seconds.append(time.monotonic() - began)
    print(json.dumps(seconds), flush=True)
    trainer.close()


def _round(trainer: Any, corpus: Corpus, rank: int) -> None:
    trainer.begin(STEPS, STEPS * trainer.batch * trainer.block)
    for step in range(STEPS):
        first = (rank * STEPS + step) * trainer.batch
        losses = trainer.step([corpus.read(np.arange(first, first + trainer.batch))])
        float(np.asarray(losses[0]))


@dataclass(frozen=True)
class Compared:
    """A real run's median round, and the simulated one's."""

    workers: int
    pace: Pace
    real: float
    simulated: float

    @property
    def off(self) -> float:
        """The error, relative to the real run."""
        return self.simulated / self.real - 1


def validate(options: argparse.Namespace) -> int:
    """The table of real and simulated rounds; 1 if one is too far off."""
    if not can_emulate():
        print("skipped: needs root, ip(8) and /dev/net/tun")
        return 0
    net = Net(options.rate, options.rtt)
    print(f"{net}, {ALGORITHM}, {STEPS} inner steps a round")
    print("| workers | inner step | a round, real | simulated | off by |")
    print("|---|---|---|---|---|", flush=True)
    far = 0
    with tempfile.TemporaryDirectory(prefix="pcp-simulation-") as name:
        code = bundle(WIDTH, LAYERS, BLOCK, BATCH, ALGORITHM)
        values = experiment(
            Path(name), code, algorithm=ALGORITHM, tau=STEPS, outer_loop_steps=ROUNDS
        )
        for workers in options.workers:
            found = compare(values, code, workers, net)
            far += abs(found.off) > TOLERANCE
            print(
                f"| {workers} | {found.pace.seconds * 1e3:.1f} ms "
                f"| {found.real:.2f} s | {found.simulated:.2f} s | {found.off:+.0%} |",
                flush=True,
            )
    return int(far > 0)


def compare(values: dict[str, Any], code: Bundle, workers: int, net: Net) -> Compared:
    """One number of workers: compute measured, trained, measured again, simulated."""
    before = pace(values, workers)
    rounds = train(values, workers, net, limit=400)[SKIPPED:]
    after = pace(values, workers)
    measured = Pace(
        *(
            (getattr(before, key) + getattr(after, key)) / 2
            for key in ("seconds", "spread", "jitter")
        )
    )
    world = world_of(code, workers, net, measured)
    figures = simulate(parse(values), code.to_bytes(), world, ROUNDS)
    real = statistics.median(record.seconds for record in rounds)
    return Compared(workers, measured, real, figures.round_seconds)


def world_of(code: Bundle, workers: int, net: Net, measured: Pace) -> World:
    """The world of a bundle's run, as `pcp simulate` makes it."""
    return World.of(
        code.manifest,
        workers=workers,
        step_seconds=measured.seconds,
        bandwidth=net.rate / 8,
        round_trip=net.rtt,
        spread=measured.spread,
        jitter=measured.jitter,
    )


# --- on paper ---

PAPER = World(
    workers=4,
    step_seconds=0.5,
    payload_bytes=500_000_000,
    state_bytes=2_000_000_000,
    bandwidth=1e9 / 8,
    round_trip=0.03,
    meetings=2,
    restart=30.0,
)
"""A model of 125 M parameters on ordinary machines with 1 Gbit/s."""
COUNTS = (2, 4, 8, 16, 64, 256, 1024, 4096)
VARIANTS: dict[str, dict[str, float]] = {
    "1 Gbit/s": {},
    "100 Mbit/s": {"bandwidth": 1e8 / 8},
    "1 Gbit/s, 4 bits": {"payload_bytes": 125_000_000 * 0.516, "coded": True},
    "1 Gbit/s, a worker lives a day": {"lifetime": 86400.0},
    "1 Gbit/s, an hour": {"lifetime": 3600.0},
}


def on_paper(
    rounds: int, counts: Sequence[int]
) -> Iterator[tuple[str, int, Figures | None]]:
    """Simulated runs of 100 inner steps a round; None where no round is ever done."""
    with tempfile.TemporaryDirectory(prefix="pcp-simulation-") as name:
        code = bundle(32, 1, 16, 4, "diloco")
        values = experiment(Path(name), code, tau=100, outer_loop_steps=1)
        settings: Experiment = parse(values)
        for variant, changes in VARIANTS.items():
            for workers in counts:
                made: dict[str, Any] = {"workers": workers, **changes}
                world = replace(PAPER, **made)
                try:
                    found = simulate(settings, code.to_bytes(), world, rounds)
                except StateMismatch:
                    found = None
                yield variant, workers, found


def tables(options: argparse.Namespace) -> int:
    """A row a simulated run."""
    print("| network, failures | workers | a round | sent by a worker | goodput |")
    print("|---|---|---|---|---|", flush=True)
    for variant, workers, figures in on_paper(options.rounds, options.workers):
        cells = "never done | - | 0 %"
        if figures is not None:
            cells = (
                f"{figures.round_seconds:.1f} s | {figures.sent_bytes / 1e6:.0f} MB "
                f"| {figures.goodput:.1%}"
            )
        print(f"| {variant} | {workers} | {cells} |", flush=True)
    return 0


RANKS = 8
ISLAND_COUNTS = (8, 64, 512)
INSIDE = InsideExchange.of_payload(4_000_000, RANKS)
"""What a rank sums with the others of its island in a step, over 100 Gbit/s."""


def islands(options: argparse.Namespace) -> int:
    """A row a simulated run of islands, of whose ranks each lives an hour."""
    print(
        "| islands of 8 | devices | a round | goodput | deaths | cpu s a round | MB |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="pcp-simulation-") as name:
        code = bundle(32, 1, 16, 4, "diloco")
        values = experiment(Path(name), code, tau=100, outer_loop_steps=1)
        for count in options.workers:
            world = replace(
                PAPER,
                workers=count,
                ranks=RANKS,
                payload_bytes=PAPER.payload_bytes // RANKS,
                state_bytes=PAPER.state_bytes // RANKS,
                inside_seconds=INSIDE.seconds(1e11 / 8, 5e-5),
                lifetime=3600.0,
            )
            f = simulate(parse(values), code.to_bytes(), world, options.rounds)
            print(
                f"| {count} | {count * RANKS} | {f.round_seconds:.1f} s "
                f"| {f.goodput:.1%} | {f.deaths} "
                f"| {f.coordinator_seconds / f.rounds:.2f} "
                f"| {f.coordinator_bytes / 1e6:.0f} |",
                flush=True,
            )
    return 0


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    if arguments[:1] == ["steps"]:
        make_steps(*arguments[1:])
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("what", choices=("validate", "tables", "islands"))
    add("--workers", type=int, nargs="+", help="how many; default 2 4 8, tables: more")
    add("--rate", type=float, default=NET.rate, help="bits a second of a worker")
    add("--rtt", type=float, default=NET.rtt, help="seconds")
    add("--rounds", type=int, default=10, help="of a table's runs")
    options = parser.parse_args(arguments)
    what, counts = {
        "validate": (validate, (2, 4, 8)),
        "tables": (tables, COUNTS),
        "islands": (islands, ISLAND_COUNTS),
    }[options.what]
    options.workers = options.workers or counts
    return what(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
