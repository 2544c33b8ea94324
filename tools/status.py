"""`pcp status`: ask a shepherd what it is doing."""

from collections.abc import Mapping, Sequence
from typing import Any

from pcp.errors import ProtocolError
from pcp.runtime.protection import Protection
from pcp.tools import training_job as jobs
from pcp.tools.command import Parser, port_number, run
from pcp.tools.protection import add_protection_flags, protection
from pcp.training.channel import OPEN, connect
from pcp.training.protocol import Heartbeat, Status, StatusQuery

PROG = "pcp status"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Ask a shepherd what it is doing.",
        example="pcp status --port 8080",
    )
    parser.add_argument("--host", default="127.0.0.1", help="the shepherd's host")
    parser.add_argument(
        "--port", type=port_number, default=8080, help="the shepherd's port"
    )
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds")
    add_protection_flags(parser)
    return parser


def ask(
    host: str, port: int, timeout: float, protected: Protection = OPEN
) -> dict[str, Any]:
    """The status of the shepherd at `host:port`."""
    channel = connect(host, port, timeout, protected)
    try:
        channel.send(StatusQuery())
        answer = channel.receive(timeout)
        while isinstance(answer, Heartbeat):
            answer = channel.receive(timeout)
    finally:
        channel.close()
    if not isinstance(answer, Status):
        raise ProtocolError(f"{host}:{port} answered with {answer.kind!r}")
    return answer.values


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    values = ask(flags.host, flags.port, flags.timeout, protection(flags))
    jobs.say(jobs.to_json(values) if flags.json else "\n".join(lines(values)))


def lines(values: Mapping[str, Any]) -> list[str]:
    """The status for a reader."""
    loss = values["loss"]
    head = [
        f"run      {values['run']}",
        f"phase    {values['phase']}, round {values['round']} of {values['rounds']}",
        f"loss     {'-' if loss is None else f'{loss:.4f}'}",
        f"tokens   {values['tokens']:,}",
    ]
    workers = [
        f"worker   {w['index']} {w['target']} on {w['device']}: {w['state']}, "
        f"round {w['round']}, heard {w['silent_seconds']} s ago"
        for w in values["workers"]
    ]
    return head + workers
