"""The end of a run: the last checkpoint, the last validation, then everybody may go."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcp.training.wire.messages import Shutdown

if TYPE_CHECKING:
    from pcp.training.coordinator.shepherd import Shepherd

# How long the end of a run waits for shares of the last validation.
_DONE_SECONDS = 30.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended; the rest is in its metrics."""

    rounds: int
    validation_loss: float | None
    checkpoint: str | None
    cancelled: bool = False
    """An operator ended it early; `--resume` goes on."""


class Ending:
    """Ends a shepherd's run, as soon as nothing is left to do."""

    def __init__(self, shepherd: "Shepherd") -> None:
        self._shepherd = shepherd
        self._since = 0.0
        self.begun = False
        """Whether no further round will begin."""
        self.outcome: Outcome | None = None
        """How the run ended; None until it has."""

    def go_on(self) -> None:
        """Everything is computed: wait for the checkpoint and the validation."""
        shepherd = self._shepherd
        saver, ledger = shepherd.saver, shepherd.ledger
        if not self.begun:
            self.begun, self._since = True, shepherd.now()
        if saver.saved != shepherd.committed and shepherd.committed:
            if not (saver.busy or saver.resting):
                self._save_last()
            return
        late = shepherd.now() - self._since > _DONE_SECONDS
        if saver.busy or (shepherd.validation.open and not late):
            return
        cancelled = shepherd.orders.cancelled
        if not (ledger.progress.ended or cancelled):
            ledger.append("end", round=shepherd.committed)
        how = "cancelled by the operator" if cancelled else "complete"
        for member in shepherd.roster:
            member.send(Shutdown(reason=f"the run is {how}"))
        self.outcome = Outcome(
            rounds=shepherd.committed,
            validation_loss=shepherd.validation.last,
            checkpoint=saver.path,
            cancelled=cancelled,
        )

    def _save_last(self) -> None:
        """The last state is on no disk yet, or only in the workers' memory."""
        shepherd = self._shepherd
        if shepherd.saver.on_disk(shepherd.committed):
            return
        if holders := shepherd.roster.holders(shepherd.committed):
            shepherd.saver.save([member.name for member in holders])
        else:
            self.begun = False  # nobody has it any more: recovery decides
