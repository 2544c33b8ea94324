"""`pcp runs`: the runs of a folder, a line each."""

from collections.abc import Sequence

from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say, to_json
from pcp.training.observe.past_run import PastRun, runs_in, summary

PROG = "pcp runs"
FOLDER = "runs"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="List the runs of a folder, the newest last.",
        example="pcp runs runs",
    )
    add = parser.add_argument
    add("folder", nargs="?", default=FOLDER, metavar="DIR", help="default: runs")
    add("--json", action="store_true", help="everything, as JSON")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    found = runs_in(flags.folder)
    if flags.json:
        say(to_json([summary(each) for each in found]))
        return
    for line in table([TITLES, *map(row, found)]):
        say(line)


TITLES = ("run", "state", "round", "loss", "validation", "tokens", "seconds", "hosts")


def row(past: PastRun) -> tuple[str, ...]:
    """A run's line of the table."""
    hosts = {str(worker["address"]) for worker in past.workers}
    return (
        past.folder.name,
        past.phase,
        f"{past.progress.committed}/{past.wanted_rounds}",
        number(past.loss),
        number(past.validation),
        f"{past.progress.tokens:,}",
        f"{past.seconds:.1f}",
        ", ".join(sorted(hosts)) or "-",
    )


def number(value: float | None) -> str:
    """A loss, or a dash."""
    return "-" if value is None else f"{value:.4f}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(n) for cell, n in zip(cells, widths, strict=True)).rstrip()
        for cells in rows
    ]
