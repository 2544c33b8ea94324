"""The validation of a round: each member evaluates a share of the held-out batches.

The loss is the mean over all whole batches of the held-out part, with the parameters of
a committed round. Shares are added in the order of ranks, so that the same shares have
the same sum. The share of a member that dies is lost; the result then covers fewer
batches, says so, and is no score by which rounds are compared.
"""

import math

from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.effects import ReportValidation
from pcp.training.coordinator.run_state import RunState
from pcp.training.wire.messages import (
    Validated,
)


class Validation:
    """Collects the shares of a validation."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._round = 0
        self._shares: dict[str, Validated | None] = {}
        """The share of each member, in the order of ranks; None while it is missing."""
        self._missing: set[str] = set()
        self.last: float | None = None
        """The newest held-out loss."""
        self.nonfinite: list[str] = []
        """Members whose shares of it are not finite, a line each."""

    @property
    def open(self) -> bool:
        """Whether a share is still missing."""
        return bool(self._missing)

    def awaits(self, name: str) -> bool:
        """Whether a member's share is still missing."""
        return name in self._missing

    def shares(self, attempt: Attempt, last: bool) -> dict[str, tuple[int, int]]:
        """The share (k, n) of each member of a committed round, if one is due."""
        experiment = self._run.experiment
        every = experiment.validate_every
        due = last or (every and attempt.round % every == 0)
        if not due or not experiment.validation_fraction:
            return {}
        self._round, self._missing = attempt.round, set(attempt.members)
        self._shares = dict.fromkeys(attempt.members)
        self.nonfinite = []
        count = len(attempt.members)
        return {name: (rank, count) for rank, name in enumerate(attempt.members)}

    def report(self, name: str, message: Validated) -> None:
        """Note a member's share."""
        if message.round != self._round or name not in self._missing:
            return
        if not math.isfinite(message.loss_sum):
            self._tell(name, message.loss_sum)
        self._shares[name] = message
        self._settle(name)

    def lost(self, name: str) -> None:
        """A member died; its share is lost."""
        if name in self._missing:
            self._run.log(
                f"the validation of round {self._round} lacks a share: a worker left"
            )
            self._settle(name)

    def _tell(self, name: str, loss: float) -> None:
        who = f"{self._run.roster[name].who} ({name})"
        line = f"{who}: validation loss is {loss} after round {self._round}"
        self.nonfinite.append(line)
        self._run.log(line)

    def _settle(self, name: str) -> None:
        self._missing.discard(name)
        if self._missing:
            return
        run, shares = self._run, [s for s in self._shares.values() if s is not None]
        batches = sum(share.batches for share in shares)
        if not batches:
            return
        self.last = sum(share.loss_sum for share in shares) / batches
        whole = len(shares) == len(self._shares)
        if whole and 0 < self._round <= run.committed:
            run.append("score", round=self._round, loss=self.last, batches=batches)
        run.do(ReportValidation(self._round, self.last, batches))
