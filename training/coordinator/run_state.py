"""The state that all parts of a run's state machine share, and their effects.

A part changes the state and adds effects with `do` (or `append`, `send`, `log`). The
order of the effects is the order of these calls.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from pcp.training.coordinator.events import SavedState
from pcp.training.coordinator.roster import Member, Roster
from pcp.training.storage import nonfinite
from pcp.training.storage.ledger_state import LedgerReplay, Progress
from pcp.training.wire.message import (
    Message,
)


class RunState:
    """The state of one run in the shepherd's process. Times are seconds of its clock.

    `replay` has applied the ledger's lines so far. `folder` is the run's, `serves` the
    address of the endpoint that hands out states, and `wanted` how many workers the
    first round waits for. `known` are workers under an earlier shepherd. With
    `first_values` the first state needs values besides the seed.
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
        known: Iterable[Mapping[str, Any]] = (),
        first_values: bool = False,
        now: float = 0.0,
    ) -> None:
        self.experiment, self.name, self.folder = experiment, name, folder
        self.frozen = experiment.frozen()
        """The settings that a resumed run must have too."""
        self.first_values = first_values
        self.wanted = wanted or experiment.members
        self.roster = Roster(known)
        self.now = self.born = now
        """The time of the event that is handled, at first of the process's start."""
        self.grace = 2 * experiment.heartbeat_limit_seconds
        """The seconds in which workers may come back after the shepherd started."""
        self.completing_since: float | None = None
        """When the last round was over; None before."""
        self.cancelled = False
        """Whether an operator has ended the run early."""
        self.sample_tokens = 1
        """The tokens of a sample; known with the first program."""
        self.draining: set[str] = set()
        """Workers that are to leave, and get no new work."""
        self.nonfinite: set[str] = set()
        """Tensors that were not finite in the state from which the run began."""
        self.served: SavedState | None = None
        """The state that the shepherd's own endpoint hands out."""
        self.parts: list[int] = []
        """The indices of the workers among which that state is shared out."""
        self._replay, self._serves = replay, serves
        self.progress: Progress = replay.progress
        """The progress by the ledger, with the lines that are still to be written."""
        self._effects: list[Effect] = []

    @property
    def committed(self) -> int:
        """The last committed round."""
        return self.progress.committed

    @property
    def term(self) -> int:
        """The term in which this shepherd leads, where others stand by; else 0."""
        return self.progress.term

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
        """Add an effect behind all others."""
        self._effects.append(effect)

    def taken(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def append(self, kind: str, *, sync: bool = True, **fields: Any) -> None:
        """Write a line of the ledger; `StateMismatch` if it cannot follow there."""
        self._replay.apply({"kind": kind, **fields})
        self.do(Append(kind, fields, sync))

    def send(self, member: Member, message: Message, bundle: str | None = None) -> None:
        """Send a message to a worker, and the bundle for a target behind it."""
        self.do(Send(member.connection, message, bundle))

    def log(self, text: str) -> None:
        """Log a line for the observers."""
        self.do(Log(text))

    def remove(self, member: Member, reason: str) -> None:
        """Remove a worker from the members. After the last round nobody is missed."""
        over = self.completing_since is not None
        self.roster.remove(member, None if over else reason)
        self.do(Close(member.connection))

    def holds(self, round_: int, digest: str | None) -> bool:
        """Whether the ledger has this state in the run's history."""
        # The state before the first round is made from a seed, or loaded.
        return not round_ or self.progress.history.digest(round_) == digest

    def knows(self, round_: int | None) -> bool:
        """Whether the history in memory reaches back to this round."""
        return not round_ or self.progress.history.reaches(round_)

    # States that the endpoint hands out ----------------------------------------------

    def serve(self, saved: SavedState, parts: Sequence[int] | None = None) -> None:
        """Hand out a state to the workers that saved it, or to these indices."""
        self.served = saved
        self.parts = list(range(saved.workers) if parts is None else parts)
        self.do(Serve(saved.round, tuple(self.parts)))

    def stop_serving(self) -> None:
        """Release a state that the run has left behind."""
        self.served = None
        self.do(StopServing())

    def tell_nonfinite(self, saved: SavedState, what: str) -> None:
        """Log a line where a state has numbers that are not finite."""
        self.nonfinite |= set(saved.nonfinite)
        if saved.nonfinite:
            self.log(f"{what} is not finite: {nonfinite.listed(saved.nonfinite)}")

    def served_now(self) -> SavedState | None:
        """The committed state, if the shepherd's own endpoint has it."""
        saved = self.served
        return saved if saved is not None and saved.round == self.committed else None

    def source(self, member: Member, turn: int = 0) -> str | None:
        """The address from which a member can fetch the committed state, or None.

        Holders take turns: where one cannot be reached another one may be.
        """
        if holders := self.roster.holders(self.committed):
            return holders[turn % len(holders)].address
        return self.address_for(member) if self.served_now() is not None else None

    def address_for(self, member: Member) -> str:
        """The shepherd's endpoint, at the address by which the member reached it."""
        here, port = member.connection.here, self._serves.rpartition(":")[2]
        return f"[{here}]:{port}" if ":" in here else f"{here}:{port}"
