"""`pcp coordinator`: where the members of an elastic group find each other."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pcp.errors import UsageError
from pcp.runtime.group.coordinator import Coordinator
from pcp.runtime.transport.address import format_address
from pcp.tools.support.command import Parser, port_number, run
from pcp.tools.support.lines import stamped
from pcp.tools.support.metrics_port import add_metrics_flags, serving
from pcp.tools.support.protection import (
    add_insecure_flag,
    add_protection_flags,
    protection,
    require_protection,
)
from pcp.tools.support.signals import stop_on_signals

PROG = "pcp coordinator"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Serve an elastic group, which `Communicator.join` joins. No "
        "tensors pass through here; when it is restarted, the members come back.",
        example="pcp coordinator --host 0.0.0.0 --members 4 --key-file run.key",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="where to listen")
    add("--port", type=port_number, default=48148, help="and on which port; 0 for any")
    add("--members", type=int, default=1, help="form the first group with so many")
    add("--silence", type=float, default=5.0, help="seconds until a member is dead")
    add("--state", type=Path, help="a file that counts restarts (or the clock does)")
    add_insecure_flag(parser)
    add_protection_flags(parser)
    add_metrics_flags(parser)
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    if flags.members < 1 or not flags.silence > 0:
        raise UsageError("at least --members 1, and a --silence above 0 seconds")
    protected = protection(flags)
    require_protection(flags.host, protected, flags.insecure)
    stop = threading.Event()
    stop_on_signals(lambda _: stop.set())
    log = stamped("coordinator")
    address = format_address(flags.host, flags.port)
    with Coordinator.listen(
        address,
        first=flags.members,
        silence=flags.silence,
        state=flags.state,
        **protected.options,
    ) as coordinator:
        log(f"listening on {coordinator.address}")
        with serving(flags, log, coordinator.collect):
            _watch(coordinator, stop, log)
    return 0


def _watch(
    coordinator: Coordinator, stop: threading.Event, log: Callable[[str], None]
) -> None:
    """Say what changes, until somebody stops it."""
    known: dict = {}
    stopped = False
    while not stopped:
        stopped = stop.wait(0.5)
        status = coordinator.status()
        if status != known:
            log(
                f"epoch {status['epoch']}, {status['phase']}: "
                f"{', '.join(status['members']) or 'nobody'}"
                + "".join(f"; {name} waits" for name in status["waiting"])
            )
            known = status
