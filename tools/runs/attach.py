"""`pcp attach`: watch a run until it ends."""

from collections.abc import Sequence
from itertools import chain

from pcp.tools.runs.logs import followed, log_of, print_event
from pcp.tools.runs.show import LATEST
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say
from pcp.training.observe import journal
from pcp.training.observe.past_run import PastRun

PROG = "pcp attach"
LAST = 20
"""Events that are shown of what was said before."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Watch a run until it ends. Ctrl-C ends the watching alone: the "
        "run goes on.",
        example="pcp attach runs/latest",
    )
    add = parser.add_argument
    add("run", nargs="?", default=LATEST, metavar="RUN", help=f"default: {LATEST}")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    events = [*journal.events(log_of(flags.run))]
    for event in chain(events[-LAST:], followed(flags.run, len(events))):
        print_event(event)
    past = PastRun.read(flags.run)
    say(f"{past.phase}: {past.progress.committed} of {past.wanted_rounds} rounds")
