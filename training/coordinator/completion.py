"""The completion of a run: last checkpoint, last validation, `Shutdown` messages."""

from dataclasses import dataclass

from pcp.training.config.experiment import Experiment
from pcp.training.coordinator import monitor
from pcp.training.coordinator.checkpointing import Saver
from pcp.training.coordinator.events import OnDisk
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.validation import Validation
from pcp.training.wire.messages import (
    Shutdown,
)

# How long the completion waits for shares of the last validation.
_DONE_SECONDS = 30.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended; its figures are in its metrics."""

    rounds: int
    validation_loss: float | None
    checkpoint: str | None
    best: tuple[int, float] | None = None
    """The round with the best held-out loss, and that loss."""
    cancelled: bool = False
    """An operator ended the run early; `--resume` goes on."""


def stop_line(experiment: Experiment, scores: monitor.Scores, round_: int) -> str:
    """The line that says why held-out losses ended a run after a round."""
    best = monitor.best(experiment, scores)
    since = "" if best is None else f" since round {best} ({scores[best]:.4f})"
    return (
        f"no better validation loss{since}: the run ends after round {round_} of "
        f"{experiment.outer_loop_steps} (stop_after is {experiment.stop_after})"
    )


class Completion:
    """Ends a run when its last checkpoint and validation are done."""

    def __init__(self, run: RunState, saver: Saver, validation: Validation) -> None:
        self._run, self._saver, self._validation = run, saver, validation
        self.outcome: Outcome | None = None
        """How the run ended; None until it has."""

    def go_on(self) -> None:
        """After the last round: wait for the checkpoint and the validation."""
        run, saver = self._run, self._saver
        if run.completing_since is None:
            run.completing_since = run.now
        if saver.saved != run.committed and run.committed:
            if not (saver.busy or saver.resting or saver.looking):
                saver.look(run.committed)
            return
        late = run.now - run.completing_since > _DONE_SECONDS
        if saver.busy or (self._validation.open and not late):
            return
        self._end()

    def seen(self, event: OnDisk) -> None:
        """Whether the last state is on the disk already, or only with the workers."""
        run = self._run
        if self._saver.seen(event):
            return
        if holders := run.roster.holders(run.committed):
            self._saver.save([member.name for member in holders])
        else:
            run.completing_since = None  # no worker has the state: recovery decides

    def _end(self) -> None:
        run, cancelled = self._run, self._run.cancelled
        if not (run.progress.ended or cancelled):
            run.append("end", round=run.committed)
        if not cancelled:
            self._say_if_early()
        best = monitor.best(run.experiment, run.progress.scores)
        how = "cancelled by the operator" if cancelled else "complete"
        for member in run.roster:
            run.send(member, Shutdown(reason=f"the run is {how}"))
        self.outcome = Outcome(
            rounds=run.committed,
            validation_loss=self._validation.last,
            checkpoint=self._saver.path,
            best=None if best is None else (best, run.progress.scores[best]),
            cancelled=cancelled,
        )

    def _say_if_early(self) -> None:
        """Log why a run ended before its last round: held-out losses, or no data."""
        run, experiment = self._run, self._run.experiment
        if run.committed >= experiment.outer_loop_steps:
            return
        if run.stops:
            run.log(stop_line(experiment, run.progress.scores, run.committed))
        else:
            run.log(
                f"the data is used up after round {run.committed} of "
                f"{experiment.outer_loop_steps}: max_epochs is {experiment.max_epochs}"
            )
