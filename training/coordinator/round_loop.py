"""A run that has begun: its members' messages, and the time between two rounds.

gathering ──enough ready──► attempt ──all prepared──► commit ──► gathering
    │                       │    ▲                      │
    │                       └────┘ a member died:       └─ last round:
    │                         epoch + 1, same leases       checkpoint, end
    └─no worker holds the committed state─► rewind to a checkpoint
"""

from collections.abc import Callable
from typing import Any

from pcp.training.coordinator import monitor
from pcp.training.coordinator.checkpointing import Saver
from pcp.training.coordinator.completion import Completion
from pcp.training.coordinator.operator_control import OperatorControl
from pcp.training.coordinator.recovery import Recovery
from pcp.training.coordinator.roster import CORRECTED, Member
from pcp.training.coordinator.rounds import Rounds
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.validation import Validation
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.messages import (
    Computed,
    Failed,
    GroupFailed,
    Heartbeat,
    Lacking,
    Prepared,
    Push,
    Ready,
    Validated,
)

_KINDS = {
    Heartbeat,
    Ready,
    Lacking,
    Computed,
    Push,
    Prepared,
    GroupFailed,
    Validated,
    Failed,
}
"""The kinds of messages that workers send once they were welcomed."""


class RoundLoop:
    """The parts of a run that need its policy, `rounds`."""

    def __init__(
        self, run: RunState, rounds: Rounds, validation: Validation, saver: Saver
    ) -> None:
        self._run, self._saver, self._validation = run, saver, validation
        self.rounds = rounds
        self.recovery = Recovery(run, rounds)
        self.operator_control = OperatorControl(run, rounds, validation)
        self.completion = Completion(run, saver, validation)
        self._started = run.committed > 0
        self._best: str | None = None
        """The digest of the last state that was saved as the best one."""
        self._held_since: float | None = None
        self._handlers: dict[type[Message], Callable[[Member, Any], None]] = {
            **rounds.handlers,
            Ready: self.recovery.on_ready,
            Lacking: self._on_lacking,
            Validated: lambda member, said: validation.report(member.name, said),
            Failed: lambda member, said: rounds.drop(member, f"gave up: {said.reason}"),
        }

    @staticmethod
    def serves(message: Message) -> bool:
        """Whether a worker may send this message."""
        return type(message) in _KINDS

    def heard(self, member: Member, message: Message) -> None:
        """Handle a message of a kind that workers send, if this policy has it."""
        if handler := self._handlers.get(type(message)):
            handler(member, message)

    def _on_lacking(self, member: Member, message: Lacking) -> None:
        """A member could not fetch a state: who did not hand it out may hang."""
        source = member.taking.get("source")
        self.recovery.on_lacking(member, message)
        holders = self._run.roster.holders(self._run.committed)
        for holder in holders if member.lacked > 1 else ():
            if holder.name == source:
                self._saver.doubt(holder)

    def tick(self) -> None:
        """Do all that is due now."""
        self.recovery.tick()
        if self.recovery.searching:
            return
        self.rounds.check_progress(self._run.now)
        if self.rounds.attempt is not None:
            self.rounds.check(self._run.now)
        elif not self._saver.blocking:
            self._advance()

    def _advance(self) -> None:
        """Between two rounds: end the run, or start the next round if it can begin."""
        run = self._run
        held = self.operator_control.hold()
        if self._awaits_score() or self._saves_best():
            return
        if run.completing_since is not None or self._over():
            self.completion.go_on()
        elif held or self._corrected() or self.rounds.finish_prepared():
            return
        elif (ready := run.roster.ready()) and self._enough(ready):
            if self.recovery.redistributed(ready) and not self._unproved():
                self._started = True
                self.rounds.start(ready)

    def _unproved(self) -> bool:
        """Whether only the members' digests say that the committed state is there."""
        run = self._run
        if not run.committed or run.served_now() is not None:
            return False
        return self._saver.proves(run.roster.holders(run.committed))

    def _corrected(self) -> bool:
        """Whether a member is about to fetch the state that most have prepared."""
        run = self._run
        return any(
            member.state == CORRECTED and run.now - member.corrected_at < run.grace
            for member in run.roster
        )

    def _over(self) -> bool:
        """Whether no further round will begin."""
        return self._run.cancelled or self._run.stops or self.rounds.exhausted()

    def _awaits_score(self) -> bool:
        """Whether a validation is open on which the next round depends."""
        run = self._run
        open_ = self._validation.open and not run.cancelled
        return open_ and monitor.decides(run.experiment, run.progress.scores)

    def _saves_best(self) -> bool:
        """Save the committed round once if it is the best; whether rounds wait."""
        run, saver = self._run, self._saver
        round_, digest = run.committed, run.progress.digest
        if not run.experiment.keep_best or digest == self._best:
            return False
        if monitor.best(run.experiment, run.progress.scores) != round_:
            return False
        if not saver.busy:
            self._best = digest
            if saver.saved != round_ and (holders := run.roster.holders(round_)):
                saver.save([member.name for member in holders])
        return True

    def _enough(self, ready: list[Member]) -> bool:
        """Whether a round is to begin with the ready members."""
        run = self._run
        if not run.roster.present(run.committed):
            return self._started and self.rounds.starts_without_holder(ready)
        all_here = len(ready) >= run.wanted
        if not self._started or all_here:
            return all_here and self.recovery.all_back()
        if self._held_since is None:
            self._held_since = run.now
        # After a restart the other workers get a moment to come back too.
        late = run.now - self._held_since > run.grace
        return self.recovery.all_back() and (late or self.rounds.newest is not None)
