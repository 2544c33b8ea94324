"""Operator control: the orders of an operator to a run.

    pause        after the round under way no other one begins
    resume       go on
    steps H      inner steps a round, from the next round on
    drain W      worker W leaves after the round under way, its supervisor with it
    cancel       save a checkpoint after the round under way, and end;
                 `--resume` goes on from there

An order is in the ledger before it takes effect: a shepherd that starts again keeps to
it, and a replay of the run knows when H changed. An operator must have the key
(`pcp.training.storage.control_file`), which the shell compares.
"""

from collections.abc import Callable
from typing import Any

from pcp.errors import ConfigError
from pcp.training.coordinator.effects import Refuse, Send
from pcp.training.coordinator.events import Peer
from pcp.training.coordinator.roster import Member
from pcp.training.coordinator.rounds import Rounds
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.validation import Validation
from pcp.training.wire.messages import (
    Shutdown,
)
from pcp.training.wire.operator_messages import (
    Order,
    Taken,
)


class OperatorControl:
    """Takes the operator's orders and carries them out between two rounds."""

    def __init__(self, run: RunState, rounds: Rounds, validation: Validation) -> None:
        self._run, self._rounds, self._validation = run, rounds, validation
        self._handlers: dict[str, Callable[[Order], str]] = {
            "pause": self._on_pause,
            "resume": self._on_resume,
            "steps": self._on_steps,
            "drain": self._on_drain,
            "cancel": lambda order: self.cancel(),
        }

    def take(self, connection: Peer, order: Order) -> None:
        """Answer an order: what it does, or why it is refused."""
        try:
            said = self._handlers[order.action](order)
        except ConfigError as error:
            self._run.do(Refuse(connection, str(error)))
            return
        self._run.log(f"operator: {order.action}: {said}")
        self._run.do(Send(connection, Taken(said=said)))

    def cancel(self) -> str:
        """Begin no further round; returns the answer for the operator."""
        self._write("cancel")
        self._run.cancelled = True
        return "the run ends with a checkpoint after this round; --resume goes on"

    def hold(self) -> bool:
        """Between two rounds: release drained workers; whether the next round waits."""
        if self._run.draining:
            if self._validation.open:
                return True  # a worker that leaves evaluates its share first
            self._release()
        return self._run.progress.paused

    def _release(self) -> None:
        run = self._run
        for name in sorted(run.draining):
            if self._rounds.busy(name):
                continue
            run.draining.discard(name)
            if name in run.roster:
                member = run.roster[name]
                run.send(member, Shutdown(reason="drained by the operator"))
                self._rounds.drop(member, "drained by the operator")

    def _write(self, action: str, **fields: Any) -> None:
        self._run.append("order", action=action, **fields)

    def _on_pause(self, order: Order) -> str:
        self._write("pause")
        return "no round begins until `resume`"

    def _on_resume(self, order: Order) -> str:
        self._write("resume")
        self._rounds.resumed()
        return "rounds go on"

    def _on_steps(self, order: Order) -> str:
        if not order.steps:
            raise ConfigError("steps: how many inner steps a round? at least 1")
        before = self._run.steps
        self._write("steps", steps=order.steps)
        return f"{order.steps} inner steps a round from the next one on, not {before}"

    def _on_drain(self, order: Order) -> str:
        run, member = self._run, self._member(order.worker)
        staying = [m for m in run.roster.ready() if m is not member]
        if not [m for m in staying if m.name not in run.draining]:
            raise ConfigError(
                f"{member.who} is the last one that trains; to end the run say `cancel`"
            )
        self._write("drain", worker=member.name)
        run.draining.add(member.name)
        return f"{member.who} leaves after this round"

    def _member(self, index: int | None) -> Member:
        for member in self._run.roster:
            if member.index == index:
                return member
        known = ", ".join(str(m.index) for m in self._run.roster) or "none"
        raise ConfigError(f"there is no worker {index}; there is {known}")
