"""`pcp compare`: runs side by side: their results, and what differs in experiments."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pcp.errors import UsageError
from pcp.tools.runs.listing import TITLES, row, table
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say
from pcp.training.observe.page_files import page
from pcp.training.observe.past_run import PastRun, summary

PROG = "pcp compare"
DEFAULT = "(default)"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Compare runs: their last losses, speed, and the keys of their "
        "experiments that differ.",
        example="pcp compare runs/run_a runs/run_b -o both.html",
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN")
    add("-o", "--out", metavar="FILE.html", help="a page with their curves")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    # `runs/*` names the newest run twice: by its folder, and by the link `latest`.
    folders = list(dict.fromkeys(Path(path).resolve() for path in flags.runs))
    if len(folders) < 2:
        raise UsageError("it takes two runs or more (one alone: pcp show RUN)")
    found = [PastRun.read(path) for path in folders]
    for line in table([TITLES, *map(row, found)]):
        say(line)
    say("")
    names = [each.folder.name for each in found]
    for line in table([("key", *names), *differences(found)]):
        say(line)
    if flags.out:
        content = page("runs.html", {"runs": [summary(each) for each in found]})
        Path(flags.out).write_text(content, encoding="utf-8")
        say(f"wrote {flags.out}")


def differences(runs: Sequence[PastRun]) -> Iterator[tuple[str, ...]]:
    """The keys whose values are not the same in all experiments."""
    chosen = [each.answer()["experiment"] for each in runs]
    for key in sorted({key for values in chosen for key in values}):
        told = tuple(values.get(key, DEFAULT) for values in chosen)
        if len(set(told)) > 1:
            yield key, *told
