"""`pcp control`: pause, resume or end a run, drain a worker, change H."""

from collections.abc import Sequence
from pathlib import Path

from pcp.errors import ConfigError, PeerLost, ProtocolError, counted
from pcp.runtime.transport.credentials import Protection
from pcp.tools.support.command import Parser, run
from pcp.tools.support.protection import add_protection_flags, protection
from pcp.training.storage import ledger
from pcp.training.storage.control_file import read_control
from pcp.training.storage.run_folder import RunFolder
from pcp.training.wire.channel import OPEN, connect
from pcp.training.wire.messages import Heartbeat, Order, Refused, Taken

PROG = "pcp control"
ACTIONS = ("pause", "resume", "cancel", "drain", "steps")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Give orders to a run that is going on. They take effect between "
        "two rounds and are written to the run's ledger. pause, resume; cancel: save "
        "a checkpoint and end; drain N: worker N leaves; steps N: inner steps a round.",
        example="pcp control drain 3 --run runs/latest",
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("number", type=int, nargs="?", help="for drain and steps")
    parser.add_argument(
        "--run",
        default="runs/latest",
        metavar="DIR",
        help="the run's folder, which holds the key; default runs/latest",
    )
    parser.add_argument("--host", help="the shepherd's; default: as in the folder")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds")
    add_protection_flags(parser)
    return parser


def give(
    folder: Path,
    order: dict[str, object],
    host: str | None,
    timeout: float,
    protected: Protection = OPEN,
):
    """What the shepherd of the run in `folder` says to an order."""
    control = read_control(folder)
    where = host or control["host"]
    channel = connect(where, control["port"], timeout, protected)
    try:
        channel.send(Order.model_validate({"key": control["key"], **order}))
        answer = channel.receive(timeout)
        while isinstance(answer, Heartbeat):
            answer = channel.receive(timeout)
    finally:
        channel.close()
    if isinstance(answer, Refused):
        raise ConfigError(answer.reason)
    if not isinstance(answer, Taken):
        raise ProtocolError(f"the shepherd answered with {answer.kind!r}")
    return answer.said


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    order: dict[str, object] = {"action": flags.action}
    names = {"drain": "worker", "steps": "steps"}
    if name := names.get(flags.action):
        if flags.number is None or flags.number < 0:
            raise ConfigError(f"{flags.action} needs a number: pcp control --help")
        order[name] = flags.number
    elif flags.number is not None:
        raise ConfigError(f"{flags.action} takes no number")
    folder, protected = Path(flags.run), protection(flags)
    try:
        print(give(folder, order, flags.host, flags.timeout, protected))
    except PeerLost as error:
        if flags.host is not None or (rounds := _ended_after(folder)) is None:
            raise
        raise ConfigError(
            f"{folder}: the run is finished, after {counted(rounds, 'round')}: it "
            f"takes no orders. pcp show {folder} shows it"
        ) from error


def _ended_after(folder: Path) -> int | None:
    """The rounds of a run that is complete; None for one that can go on."""
    run_folder = RunFolder(folder.resolve())
    if not run_folder.begun:
        return None
    progress = ledger.replayed(ledger.read(run_folder.ledger)[0]).progress
    return progress.committed if progress.ended else None
