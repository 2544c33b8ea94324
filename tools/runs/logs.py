"""`pcp logs`: what a run's shepherd said, and says."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pcp import strict_json
from pcp.errors import ConfigError
from pcp.tools.runs.show import LATEST
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say
from pcp.training.observe import journal
from pcp.training.observe.log_lines import DATED, log_line
from pcp.training.observe.past_run import RUNNING, PastRun
from pcp.training.storage.run_folder import RunFolder

PROG = "pcp logs"
_LOOK_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Print what a run's shepherd said.",
        example="pcp logs runs/latest -f",
    )
    add = parser.add_argument
    add("run", nargs="?", default=LATEST, metavar="RUN", help=f"default: {LATEST}")
    add("-f", "--follow", action="store_true", help="go on until the run ends")
    add("-n", "--lines", type=int, metavar="N", help="the last N events; default: all")
    add("--json", action="store_true", help="an object a line: time and text")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    log = log_of(flags.run)
    events = [*journal.events(log)]
    shown = len(events)
    for event in events[-flags.lines :] if flags.lines else events:
        print_event(event, flags.json)
    if flags.follow:
        for event in followed(flags.run, shown):
            print_event(event, flags.json)


def log_of(path: str | Path) -> Path:
    """The log of the run in a folder; `ConfigError` where there is none."""
    log = RunFolder(Path(path).resolve()).log
    if not log.exists():
        raise ConfigError(f"{path}: no {log.name} is there; name the folder of a run")
    return log


def followed(path: str | Path, seen: int) -> Iterator[journal.Event]:
    """The events after the first `seen`, until the run is led no more."""
    going = True
    while going:
        # Asked before the file is read: what was said last is not missed.
        going = PastRun.read(path).phase == RUNNING
        events = [*journal.events(log_of(path))]
        yield from events[seen:]
        seen = len(events)
        if going:
            time.sleep(_LOOK_S)


def print_event(event: journal.Event, as_json: bool = False) -> None:
    """Print an event, as the log has it or as an object."""
    at, text = event
    if as_json:
        say(strict_json.dumps({"time": at, "text": text}))
    else:
        say(log_line(text, DATED, at))
