"""`pcp ui`: the runs of a folder in a browser, live and finished."""

import secrets
import threading
from collections.abc import Sequence

from pcp.runtime.transport.address import is_loopback
from pcp.tools.pages.bundle_page import programs
from pcp.tools.support.command import Parser, port_number, run
from pcp.tools.support.lines import say
from pcp.tools.support.protection import (
    add_protection_flags,
    protection,
)
from pcp.tools.support.signals import in_order
from pcp.training.observe.past_run import runs_in
from pcp.training.observe.web import needs_packages

PROG = "pcp ui"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, in_order(_main), argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Show the runs of a folder in a browser: curves over each other, "
        "what differs, and the page of each, where a run that goes on takes orders "
        "(`pcp control key` prints the key for them). Ctrl-C ends it.",
        example="pcp ui runs --port 8090",
    )
    add = parser.add_argument
    add("folder", nargs="?", default="runs", metavar="DIR", help="default: runs")
    add("--host", default="127.0.0.1", help="address to listen on; this machine's own")
    add("--port", type=port_number, default=0, help="default: any free one")
    add_protection_flags(parser)
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    runs_in(flags.folder)  # what is wrong with it is told before a browser asks
    token = "" if is_loopback(flags.host) else secrets.token_urlsafe(24)
    needs_packages()
    from pcp.training.observe.web.runs_page import RunsPage
    from pcp.training.observe.web.server import WebServer

    served = RunsPage(flags.folder, protection(flags), programs)
    server = WebServer(flags.host, flags.port, served.routes(), token)
    try:
        say(f"runs of {flags.folder}: {server.url} (Ctrl-C ends)")
        threading.Event().wait()
    finally:
        server.close()
