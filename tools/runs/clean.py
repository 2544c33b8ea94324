"""`pcp clean`: complete runs that are old go, and with them their checkpoints."""

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pcp.errors import UsageError, counted
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say
from pcp.training.observe.past_run import COMPLETE, PastRun, runs_in

PROG = "pcp clean"
DAY_S = 86400.0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Name the complete runs of a folder that are older than some days; "
        "with --yes they are removed, checkpoints and all. Runs that go on or stopped "
        "early stay.",
        example="pcp clean runs --days 30 --yes",
    )
    add = parser.add_argument
    add("folder", nargs="?", default="runs", metavar="DIR", help="default: runs")
    add("--days", type=float, default=30.0, help="since their end; default 30")
    add("--yes", action="store_true", help="remove them")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    if flags.days < 0:
        raise UsageError(f"--days {flags.days:g}: at least 0")
    old = list(_older(flags.folder, time.time() - flags.days * DAY_S))
    for past in old:
        path = past.folder.path
        say(f"{'removed' if flags.yes else 'would remove'} {path} ({_size(path):,} B)")
        if flags.yes:
            shutil.rmtree(path)
    if not old or not flags.yes:
        say(f"{counted(len(old), 'run')} older than {flags.days:g} days; nothing gone")


def _older(folder: str, limit: float) -> Iterator[PastRun]:
    """The complete runs whose ledger was written last before `limit`."""
    for past in runs_in(folder):
        if past.phase == COMPLETE and past.folder.ledger.stat().st_mtime < limit:
            yield past


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
