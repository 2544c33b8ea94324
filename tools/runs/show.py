"""`pcp show`: one run from its folder: how far, how good, by which workers."""

from collections.abc import Iterator, Sequence

from pcp.tools.pages.bundle_page import programs
from pcp.tools.runs.listing import number, table
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say, to_json
from pcp.training.observe.dashboard import sparkline
from pcp.training.observe.past_run import STOPPED, PastRun, write_report

PROG = "pcp show"
LATEST = "runs/latest"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Show a run from its folder, whether its shepherd lives or not.",
        example="pcp show runs/latest --report",
    )
    add = parser.add_argument
    add("run", nargs="?", default=LATEST, metavar="RUN", help=f"default: {LATEST}")
    add("--json", action="store_true", help="everything, as JSON")
    add("--report", action="store_true", help="write report.html into the folder")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    past = PastRun.read(flags.run)
    if flags.json:
        say(to_json(past.answer()))
    else:
        for line in lines(past):
            say(line)
    if flags.report:
        say(f"report     {write_report(flags.run, programs)}")


def lines(past: PastRun) -> Iterator[str]:
    """The run for a reader."""
    done = f"{past.progress.committed} of {past.wanted_rounds}"
    yield f"run        {past.folder.path}"
    yield f"state      {past.phase}, round {done}"
    if past.phase == STOPPED:
        yield (
            f"go on      pcp train {past.folder.experiment} --resume --run "
            f"{past.folder.path}"
        )
    yield f"loss       {number(past.loss)}, validation {number(past.validation)}"
    if past.rounds:
        yield f"           {sparkline([record.loss for record in past.rounds])}"
    rate = past.progress.tokens / max(past.seconds, 1e-9)
    yield f"tokens     {past.progress.tokens:,}, {rate:,.0f} a second"
    yield f"saved      {past.checkpoint or 'no checkpoint yet'}"
    yield ""
    yield from table([("worker", "host", "target", "device", "left"), *_workers(past)])
    yield ""
    yield from table([("key", "value"), *_keys(past)])


def _workers(past: PastRun) -> Iterator[tuple[str, ...]]:
    keys = ("index", "address", "target", "device", "left")
    yield from (tuple(str(w.get(key, "")) for key in keys) for w in past.workers)


def _keys(past: PastRun) -> Iterator[tuple[str, str]]:
    yield from ((k, v) for k, v in past.answer()["experiment"].items())
