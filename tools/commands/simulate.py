"""`pcp simulate`: how a run would go with more workers, slower links, more failures."""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from pcp.bundle import Bundle
from pcp.errors import ConfigError, UsageError
from pcp.manifest import Manifest
from pcp.tools.support import training_job as jobs
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say, stamped, to_json
from pcp.tools.support.progress import doing
from pcp.tools.support.signals import in_order
from pcp.training.config.experiment import Experiment
from pcp.training.simulate.inside_exchange import InsideExchange
from pcp.training.simulate.network_model import World
from pcp.training.simulate.simulation import Figures, simulate
from pcp.training.storage.round_record import Round
from pcp.training.trainer.bundle_checks import plan_of

PROG = "pcp simulate"
WORKERS = "2,4,8,16,64,256"
COLUMNS = ("workers", "rounds", "s a round", "MB sent", "goodput", "deaths")
COORDINATOR = ("cpu s", "MB held")
"""The columns of what the coordinator itself takes."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, in_order(_main), argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Run the real shepherd against modelled workers, network and "
        "failures, on a virtual clock. Goodput is the share of all inner steps that "
        "the workers could have made, each at its own speed and without a pause, which "
        "was made and committed; cpu s and MB held are the shepherd's.",
        example="pcp simulate experiment.json --workers 4,64,1024 --step-seconds 0.5 "
        "--bandwidth 50 --round-trip 100 --lifetime 86400",
    )
    add = parser.add_argument
    add("config", metavar="EXPERIMENT.json")
    jobs.add_set(parser)
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--workers", metavar="N,...", help=f"how many; {WORKERS}")
    many.add_argument("--islands", metavar="N,...", help="as --workers, with a mesh")
    add("--mesh", metavar="tp=2,..", help="a worker is an island of so many devices")
    add("--step-seconds", type=float, required=True, help="of one inner step")
    add("--bandwidth", type=float, default=1000.0, help="Mbit/s of a worker; 1000")
    add("--round-trip", type=float, default=1.0, help="ms between workers; default 1")
    add("--lifetime", type=float, help="mean seconds until a worker dies; never")
    add("--restart", type=float, default=2.0, help="seconds until it is back; 2")
    add("--silent", type=float, default=0.0, help="share of deaths without a word")
    add("--spread", type=float, default=0.05, help="of workers' speeds, relative")
    add("--overhead", type=float, default=0.0, help="seconds an exchange takes besides")
    add("--payload", type=int, metavar="BYTES", help="of a contribution; the bundle's")
    inside = "between the ranks of an island"
    add("--inside-bandwidth", type=float, default=1e5, help=f"Mbit/s {inside}; 100000")
    add("--inside-round-trip", type=float, default=0.05, help=f"ms {inside}; 0.05")
    add(
        "--inside-payload",
        type=int,
        metavar="BYTES",
        help="that a rank sums with the others of its island in a step; the bundle's",
    )
    add("--rounds", type=int, default=20, help="default 20")
    add("--seed", type=int, default=0, help="of speeds and deaths")
    add("--json", action="store_true", help="all figures")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    _check(flags)
    sizes = _numbers(flags)
    changes = list(flags.changes)
    if flags.mesh is not None:
        changes += [("mesh", flags.mesh), ("islands", [])]
    experiment = jobs.read_experiment(flags.config, changes=changes)
    _check_islands(flags, experiment)
    report = stamped("compiler", sys.stderr)  # stdout may have to be JSON
    content = jobs.compiler_for(experiment, report)("cpu")
    manifest = Bundle.from_bytes(content, source=experiment.model_path).manifest
    own_clocks = plan_of(manifest).synchronize == "asynchronous"
    if own_clocks or experiment.late != "drop":
        raise ConfigError(
            "learners on clocks of their own, and late results that count, are not "
            "modelled: simulate an algorithm of rounds, such as diloco, with late = "
            "'drop', or run this one"
        )
    shown: list[Figures] = []
    modelled = _world(flags, manifest)
    members = "islands" if modelled.ranks > 1 else "workers"
    for workers in sizes:
        world = replace(modelled, workers=workers)
        what = f"simulating {flags.rounds} rounds of {workers} {members}"
        with doing(what) as now:

            def told(record: Round, now: Callable[[str], None] = now) -> None:
                now(f"{record.round} of {flags.rounds} rounds")

            found = simulate(
                experiment, content, world, flags.rounds, flags.seed, told=told
            )
        shown.append(found)
        if not flags.json:
            _show(shown)
    if flags.json:
        say(to_json([asdict(figures) for figures in shown]))


def _check(flags: argparse.Namespace) -> None:
    """What no world is like: `UsageError`."""
    times = ("step_seconds", "round_trip", "restart", "spread", "overhead")
    for name in (*times, "inside_round_trip"):
        if math.isinf(getattr(flags, name)):
            raise UsageError(f"--{name.replace('_', '-')}: it would never end")
    for name in ("step_seconds", "bandwidth", "inside_bandwidth", "rounds"):
        if not getattr(flags, name) > 0:
            raise UsageError(f"--{name.replace('_', '-')}: above 0")
    for name in (*times[1:], "inside_round_trip", "payload", "inside_payload"):
        if not (getattr(flags, name) or 0) >= 0:
            raise UsageError(f"--{name.replace('_', '-')}: at least 0")
    if not 0 <= flags.silent <= 1:
        raise UsageError("--silent: a share of deaths, from 0 to 1")
    if flags.lifetime is not None and not flags.lifetime > 0:
        raise UsageError("--lifetime: above 0, or left out for workers that never die")


def _check_islands(flags: argparse.Namespace, experiment: Experiment) -> None:
    """`UsageError` for islands that are unlike, or of which nothing says the mesh."""
    if experiment.islands:
        raise UsageError(
            "islands of unlike shape are not simulated: say one --mesh, as tp=2"
        )
    if flags.islands is not None and experiment.mesh is None:
        raise UsageError("--islands: say what an island is, --mesh tp=2")
    if flags.inside_payload is not None and experiment.ranks == 1:
        raise UsageError("--inside-payload: a worker is one device; say --mesh tp=2")


def _world(flags: argparse.Namespace, manifest: Manifest) -> World:
    """The world that the flags and the bundle say, of any number of workers."""
    ranks = max(1, len(manifest.programs))
    payload = {}
    if flags.payload is not None:
        payload["payload_bytes"] = math.ceil(flags.payload / ranks)
    inside = InsideExchange.of(manifest)
    if flags.inside_payload is not None:
        inside = InsideExchange.of_payload(flags.inside_payload, ranks)
    return World.of(
        manifest,
        workers=1,
        step_seconds=flags.step_seconds,
        bandwidth=flags.bandwidth * 1e6 / 8,
        round_trip=flags.round_trip / 1e3,
        spread=flags.spread,
        overhead=flags.overhead,
        lifetime=flags.lifetime or math.inf,
        restart=flags.restart,
        silent=flags.silent,
        inside_seconds=inside.seconds(
            flags.inside_bandwidth * 1e6 / 8, flags.inside_round_trip / 1e3
        ),
        **payload,
    )


def _numbers(flags: argparse.Namespace) -> list[int]:
    flag = "--workers" if flags.islands is None else "--islands"
    text = flags.islands or flags.workers or WORKERS
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{flag} {text}: expected numbers, 2,4,8") from error
    if min(numbers) < 1:
        raise UsageError(f"{flag}: at least one")
    return numbers


def _show(shown: Sequence[Figures]) -> None:
    """The head before the first line, then the newest line."""
    f = shown[-1]
    columns = ("islands", "of", *COLUMNS[1:]) if f.ranks > 1 else COLUMNS
    if len(shown) == 1:
        say(_line((*columns, *COORDINATOR)))
    cells = (
        str(f.workers),
        *((str(f.ranks),) if f.ranks > 1 else ()),
        str(f.rounds),
        f"{f.round_seconds:.2f}",
        f"{f.sent_bytes / 1e6:.2f}",
        f"{f.goodput:.3f}",
        str(f.deaths),
        f"{f.coordinator_seconds:.2f}",
        f"{f.coordinator_bytes / 1e6:.1f}",
    )
    say(_line(cells))


def _line(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>10}" for cell in cells)
