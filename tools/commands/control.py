"""`pcp control`: pause, resume or end a run, drain a worker, change H."""

from collections.abc import Sequence
from pathlib import Path

from pcp.errors import ConfigError, PeerLost, counted
from pcp.tools.support.command import Parser, run
from pcp.tools.support.protection import add_protection_flags, protection
from pcp.training.observe.orders import give
from pcp.training.storage import ledger
from pcp.training.storage.control_file import read_control
from pcp.training.storage.run_folder import RunFolder

PROG = "pcp control"
KEY = "key"
ACTIONS = ("pause", "resume", "cancel", "drain", "steps", KEY)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Give orders to a run that is going on. They take effect between "
        "two rounds and are written to the run's ledger. pause, resume; cancel: save "
        "a checkpoint and end; drain N: worker N leaves; steps N: inner steps a round; "
        "key: print what the run's web page asks for before it gives orders.",
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
    if flags.action == KEY:
        print(read_control(folder)["key"])
        return
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
