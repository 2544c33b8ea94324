"""`pcp status`: ask a shepherd what it is doing.

Of a run that is complete there is no shepherd: its ledger says how it ended.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pcp.errors import PeerLost, ProtocolError, counted
from pcp.runtime.transport.credentials import Protection
from pcp.tools.support.command import Parser, port_number, run
from pcp.tools.support.lines import say, to_json
from pcp.tools.support.protection import add_protection_flags, protection
from pcp.training.storage import ledger
from pcp.training.storage.control_file import CONTROL_FILE, read_control
from pcp.training.storage.run_folder import WORKER_LOG, RunFolder
from pcp.training.wire.channel import OPEN, connect
from pcp.training.wire.messages import (
    Heartbeat,
)
from pcp.training.wire.operator_messages import (
    Status,
    StatusQuery,
)

PROG = "pcp status"
LATEST = "runs/latest"
HOST, PORT = "127.0.0.1", 8080


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Ask a shepherd what it is doing.",
        example="pcp status --run runs/latest",
    )
    add = parser.add_argument
    add("--run", metavar="DIR", help=f"the run's folder; default {LATEST}, if any")
    add("--host", help=f"the shepherd's; default: as in the folder, or {HOST}")
    add("--port", type=port_number, help=f"default: as in the folder, or {PORT}")
    add("--json", action="store_true", help="everything, as JSON")
    add("--timeout", type=float, default=5.0, help="seconds")
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
    places, protected, values = _places(flags), protection(flags), None
    for place in places:  # what is there may be of a run that is over
        try:
            values = ask(*place, flags.timeout, protected)
            break
        except PeerLost:
            if place is places[-1] and (values := _ended(flags)) is None:
                raise
    assert values is not None, "a place was asked"
    say(to_json(values) if flags.json else "\n".join(lines(values)))


def _places(flags: Namespace) -> list[tuple[str, int]]:
    """Hosts and ports to ask, in this order, until one answers."""
    usual = flags.host or HOST, PORT if flags.port is None else flags.port
    given = flags.host is not None or flags.port is not None
    if flags.run is None and (given or not Path(LATEST, CONTROL_FILE).exists()):
        return [usual]
    control = read_control(flags.run or LATEST)
    port = control["port"] if flags.port is None else flags.port
    found = flags.host or control["host"], port
    return [found] if flags.run is not None else [found, usual]


def _ended(flags: Namespace) -> dict[str, Any] | None:
    """The status of a run that no shepherd leads any more; None for another one.

    `PeerLost` for a run that can go on: it says how.
    """
    if flags.host is not None or flags.port is not None:
        return None
    folder = RunFolder(Path(flags.run or LATEST).resolve())
    if not folder.begun:
        return None
    records, _ = ledger.read(folder.ledger)
    progress = ledger.replayed(records).progress
    rounds = progress.settings["outer_loop_steps"] if progress.settings else None
    if not progress.ended:
        trained = (
            folder.path / WORKER_LOG
        ).exists()  # by `pcp train`, all on a machine
        command = "pcp train" if trained else "pcp shepherd --config"
        raise PeerLost(
            f"no shepherd leads {folder.path} any more; it has "
            f"{counted(progress.committed, 'round')} of {rounds or 'unknown many'}, "
            f"and goes on with: {command} {folder.experiment} --resume "
            f"--run {folder.path}"
        )
    commits = [record for record in records if record["kind"] == "commit"]
    losses = [record["loss"] for record in commits]
    metrics = [record.get("metrics", {}) for record in commits]
    saved = [record["path"] for record in records if record["kind"] == "checkpoint"]
    return {
        "run": str(folder.path),
        "phase": "complete",
        "round": progress.committed,
        "rounds": rounds or progress.committed,
        "epoch": progress.epoch,
        "loss": losses[-1] if losses else None,
        "metrics": metrics[-1] if metrics else {},
        "tokens": progress.tokens,
        "checkpoint": saved[-1] if saved else None,
        "workers": [],
    }


def _of_worker(row: Mapping[str, Any]) -> list[str]:
    """A worker; an island with a line for each of its ranks."""
    held = "-" if row["round"] is None else row["round"]
    ranks = row.get("ranks", ())
    runs = f"island of {len(ranks)}" if ranks else f"on {row['device']}"
    where = f"{row['index']} at {row['address']}, {row['target']} {runs}"
    said = f"worker   {where}: {row['state']}"
    first = f"{said}, round {held}, heard {row['silent_seconds']} s ago"
    return [first, *(f"  rank {at} {_of_rank(r)}" for at, r in enumerate(ranks))]


def _of_rank(rank: Mapping[str, Any]) -> str:
    heard = rank["silent_seconds"]
    return f"{rank['rank']} at {rank['address']}, heard {heard} s ago"


def lines(values: Mapping[str, Any]) -> list[str]:
    """The status for a reader."""
    loss = values["loss"]
    head = [
        f"run      {values['run']}",
        f"phase    {values['phase']}, round {values['round']} of {values['rounds']}",
        f"loss     {'-' if loss is None else f'{float(loss):.4f}'}",
        f"tokens   {values['tokens']:,}",
    ]
    known = values.get("metrics", {}).items()
    head += [f"metric   {name} {float(value):.6g}" for name, value in known]
    workers = [line for row in values["workers"] for line in _of_worker(row)]
    workers += [
        f"absent   {row['index']} at {row['address']}: {row['left']}"
        for row in values.get("absent", ())
    ]
    alone = values.get("waiting", ())
    workers += [f"waiting  {_of_rank(rank)}, in no island" for rank in alone]
    if values.get("checkpoint"):
        head.append(f"saved    {values['checkpoint']}")
    return head + workers + [f"warning  {line}" for line in values.get("nonfinite", ())]
