"""The part of a run's state machine that all others share: its place and its effects.

A part changes the state and says with `do` (or `append`, `send`, `log`) what that asks
of the world. The order of the effects is the order of these calls.
"""

from collections.abc import Sequence
from typing import Any

from pcp.training.config.experiment import Experiment
from pcp.training.coordinator import monitor
from pcp.training.coordinator.effects import (
    Append,
    Close,
    Effect,
    Log,
    Send,
    Serve,
    StopServing,
)
from pcp.training.coordinator.events import Saved
from pcp.training.coordinator.roster import Member, Roster
from pcp.training.storage import nonfinite
from pcp.training.storage.ledger_state import LedgerReplay, Progress
from pcp.training.wire.message import (
    Message,
)


class RunState:
    """One run, as the shepherd's process knows it. Times are seconds of its clock.

    `replay` has applied the ledger's lines so far. `folder` is where the run is kept,
    `serves` the address of the endpoint that hands out states, and `wanted` how many
    workers the first round waits for.
    """

    def __init__(
        self,
        experiment: Experiment,
        replay: LedgerReplay,
        *,
        name: str,
        folder: str,
        serves: str,
        wanted: int | None = None,
        now: float = 0.0,
    ) -> None:
        self.experiment, self.name, self.folder = experiment, name, folder
        self.wanted = wanted or experiment.workers
        self.roster = Roster()
        self.now = self.born = now
        """The time of the event that is handled; when this process began."""
        self.grace = 2 * experiment.heartbeat_limit_seconds
        """Seconds that workers get to come back after the shepherd started."""
        self.completing_since: float | None = None
        """Since when no further round will begin."""
        self.cancelled = False
        """Whether an operator ended the run early."""
        self.sample_tokens = 1
        """What a sample counts for; known with the first program."""
        self.draining: set[str] = set()
        """Workers that are to leave, and get nothing new to do."""
        self.nonfinite: set[str] = set()
        """Tensors that were not finite in a state that the run began from."""
        self.served: Saved | None = None
        """The state that this process's own endpoint hands out."""
        self.parts: list[int] = []
        """The indices of the workers among which it is shared out."""
        self._replay, self._serves = replay, serves
        self._effects: list[Effect] = []

    @property
    def progress(self) -> Progress:
        """The ledger's sum, with the lines that are still to be written."""
        return self._replay.progress

    @property
    def committed(self) -> int:
        """The last committed round."""
        return self._replay.progress.committed

    @property
    def term(self) -> int:
        """In which this shepherd leads, where others stand by; else 0."""
        return self._replay.progress.term

    @property
    def age(self) -> float:
        """Seconds since this process began."""
        return self.now - self.born

    @property
    def steps(self) -> int:
        """Inner steps of the next round: the experiment's, or the operator's."""
        return self.progress.steps or self.experiment.tau

    @property
    def stops(self) -> bool:
        """Whether the held-out losses end the run."""
        return monitor.stops(self.experiment, self.progress.scores)

    def do(self, effect: Effect) -> None:
        """Ask for something, after all that was asked for before."""
        self._effects.append(effect)

    def taken(self) -> list[Effect]:
        """All that was asked for since the last time."""
        effects, self._effects = self._effects, []
        return effects

    def append(self, kind: str, *, sync: bool = True, **fields: Any) -> None:
        """A line of the ledger; `StateMismatch` if it cannot follow those before."""
        self._replay.apply({"kind": kind, **fields})
        self.do(Append(kind, fields, sync))

    def send(self, member: Member, message: Message, bundle: str | None = None) -> None:
        """A message for a worker, and the bundle for a target behind it."""
        self.do(Send(member.connection, message, bundle))

    def log(self, text: str) -> None:
        """A line for the observers."""
        self.do(Log(text))

    def remove(self, member: Member) -> None:
        """A worker is no member any longer."""
        self.roster.remove(member)
        self.do(Close(member.connection))

    def holds(self, round_: int, digest: str | None) -> bool:
        """Whether this is a state of the run's history, as the ledger has it."""
        # The state before the first round is made from a seed, or loaded.
        return not round_ or self.progress.history.digest(round_) == digest

    def knows(self, round_: int | None) -> bool:
        """Whether the history in memory is enough to judge a state of a round."""
        return not round_ or self.progress.history.reaches(round_)

    # States that the endpoint hands out ----------------------------------------------

    def serve(self, saved: Saved, parts: Sequence[int] | None = None) -> None:
        """Hand out a state, to all workers that saved it or to these indices."""
        self.served = saved
        self.parts = list(range(saved.workers) if parts is None else parts)
        self.do(Serve(saved.round, tuple(self.parts)))

    def stop_serving(self) -> None:
        """Let go of a state that the run has left behind."""
        self.served = None
        self.do(StopServing())

    def tell_nonfinite(self, saved: Saved, what: str) -> None:
        """A line where some of a state's numbers are not finite."""
        self.nonfinite |= set(saved.nonfinite)
        if saved.nonfinite:
            self.log(f"{what} is not finite: {nonfinite.listed(saved.nonfinite)}")

    def served_now(self) -> Saved | None:
        """The committed state, if this process's own endpoint has it."""
        saved = self.served
        return saved if saved is not None and saved.round == self.committed else None

    def source(self, member: Member) -> str | None:
        """Where a member can fetch the committed state; None: no process has it."""
        for holder in self.roster.holders(self.committed):
            return holder.address
        return self.address_for(member) if self.served_now() is not None else None

    def address_for(self, member: Member) -> str:
        """Our endpoint, at the address that led the member to this machine."""
        here, port = member.connection.here, self._serves.rpartition(":")[2]
        return f"[{here}]:{port}" if ":" in here else f"{here}:{port}"
