"""What an operator may ask of a run while it goes on.

    pause        after the round under way no other one begins
    resume       go on
    steps H      inner steps a round, from the next round on
    drain W      worker W leaves after the round under way, its supervisor with it
    cancel       save a checkpoint after the round under way, and end;
                 `--resume` goes on from there

An order is in the ledger before it is obeyed: a shepherd that starts again still
keeps it, and a replay of the run knows when H changed. Whoever gives one must
have the key, which only those who may read the run's folder have.
"""

import hmac
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcp import strict_json
from pcp.errors import ConfigError
from pcp.training.coordinator.roster import Member
from pcp.training.wire.messages import Order, Shutdown, Taken
from pcp.training.wire.server import Connection

if TYPE_CHECKING:
    from pcp.training.coordinator.shepherd import Shepherd

CONTROL_FILE = "control.json"
WILDCARDS = ("0.0.0.0", "::")


def write_control(folder: Path, host: str, port: int) -> str:
    """Leave in the run's folder where the shepherd is, and a new key; returns it."""
    key = secrets.token_hex(32)
    reached = "127.0.0.1" if host in WILDCARDS else host
    path = folder / CONTROL_FILE
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.unlink(missing_ok=True)
    descriptor = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(strict_json.dumps({"host": reached, "port": port, "key": key}))
    os.replace(hidden, path)
    return key


def read_control(folder: str | Path) -> dict[str, Any]:
    """`host`, `port` and `key` of the shepherd of the run in `folder`."""
    path = Path(folder) / CONTROL_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; name the folder of a run that is going on, on "
            "the shepherd's machine"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    return values


class Orders:
    """Takes the operator's orders and carries them out between two rounds."""

    def __init__(self, shepherd: "Shepherd", key: str) -> None:
        self._shepherd, self._key = shepherd, key
        self._draining: set[str] = set()
        self.cancelled = False
        """Whether the run is to end early."""
        self.interrupted = 0
        """The signal that asks for it; 0: none came."""
        self._handlers: dict[str, Callable[[Order], str]] = {
            "pause": self._on_pause,
            "resume": self._on_resume,
            "steps": self._on_steps,
            "drain": self._on_drain,
            "cancel": self._on_cancel,
        }

    @property
    def paused(self) -> bool:
        """Whether no round may begin."""
        return self._shepherd.ledger.progress.paused

    def take(self, connection: Connection, order: Order) -> None:
        """Answer an order: what will happen, or why nothing will."""
        if not hmac.compare_digest(order.key.encode(), self._key.encode()):
            connection.refuse(
                f"the key is not this run's; it is in {CONTROL_FILE} of the run's "
                "folder and new with every start of the shepherd"
            )
            return
        try:
            said = self._handlers[order.action](order)
        except ConfigError as error:
            connection.refuse(str(error))
            return
        self._shepherd.log(f"operator: {order.action}: {said}")
        connection.send(Taken(said=said))

    def interrupt(self, number: int) -> None:
        """Ask for `cancel`, from a signal's handler, which may do nothing itself."""
        self.interrupted = number

    def heed(self) -> None:
        """Do what a signal asked for; a run that has not begun just ends."""
        if not self.interrupted or self.cancelled:
            return
        if not self._shepherd.rounds.begun:
            raise KeyboardInterrupt
        self._shepherd.log(f"interrupted: {self._cancel()}; a second signal ends it")

    def hold(self) -> bool:
        """Between two rounds: let drained workers go; whether the next one waits."""
        if self._draining and self._shepherd.validation.open:
            return True  # a worker that leaves does its share first
        self._release()
        return self.paused

    def leaving(self, name: str) -> bool:
        """Whether a worker is to leave, and gets nothing new to do."""
        return name in self._draining

    def _release(self) -> None:
        for name in sorted(self._draining):
            if self._shepherd.rounds.busy(name):
                continue
            self._draining.discard(name)
            if name in self._shepherd.roster:
                member = self._shepherd.roster[name]
                member.send(Shutdown(reason="drained by the operator"))
                self._shepherd.drop(member, "drained by the operator")

    def describe(self) -> dict[str, Any]:
        """For a status."""
        return {
            "paused": self.paused,
            "cancelled": self.cancelled,
            "steps": self._shepherd.rounds.steps,
        }

    def _write(self, action: str, **fields: Any) -> None:
        if not self._shepherd.rounds.begun:
            raise ConfigError("the run has not begun yet: no worker was welcomed")
        self._shepherd.ledger.append("order", action=action, **fields)

    def _on_pause(self, order: Order) -> str:
        self._write("pause")
        return "no round begins until `resume`"

    def _on_resume(self, order: Order) -> str:
        self._write("resume")
        return "rounds go on"

    def _on_steps(self, order: Order) -> str:
        if not order.steps:
            raise ConfigError("steps: how many inner steps a round? at least 1")
        before = self._shepherd.rounds.steps
        self._write("steps", steps=order.steps)
        return f"{order.steps} inner steps a round from the next one on, not {before}"

    def _on_drain(self, order: Order) -> str:
        member = self._member(order.worker)
        staying = [m for m in self._shepherd.roster.ready() if m is not member]
        if not [m for m in staying if m.name not in self._draining]:
            raise ConfigError(
                f"worker {member.index} is the last one that trains; to end the run "
                "say `cancel`"
            )
        self._write("drain", worker=member.name)
        self._draining.add(member.name)
        return f"worker {member.index} leaves after this round"

    def _on_cancel(self, order: Order) -> str:
        return self._cancel()

    def _cancel(self) -> str:
        self._write("cancel")
        self.cancelled = True
        return "the run ends with a checkpoint after this round; --resume goes on"

    def _member(self, index: int | None) -> Member:
        for member in self._shepherd.roster:
            if member.index == index:
                return member
        known = ", ".join(str(m.index) for m in self._shepherd.roster) or "none"
        raise ConfigError(f"there is no worker {index}; there is {known}")
