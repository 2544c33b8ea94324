"""A run of a fixed world: its members are the same from the first step to the last.

    for each round    join(groups), inner steps, outer step, adopt
    now and then      a checkpoint, from which a world that lost a member begins again

The inner steps, the trainer and the checkpoints are those of a worker with a shepherd
(`pcp.training.worker.worker`). What differs is who decides: all members know the rounds
beforehand, so nobody gives out leases, and a round that is made is committed. A loss
of a member ends all others; `pcp run` then starts all of them again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pcp.training.trainer.batch_source import BatchSource
from pcp.training.trainer.bundle_trainer import BundleTrainer
from pcp.training.trainer.replica_agreement import Agreement
from pcp.training.wire.messages import LeaseGrant
from pcp.training.worker.fixed_checkpoints import FixedCheckpoints
from pcp.training.worker.inner_steps import InnerSteps
from pcp.training.worker.worker_state import WorkerState

Stepped = Callable[[int, np.ndarray], None]
"""Is told the number of a step, from 1, and its loss."""
USUAL = 100
"""Steps between two checkpoints, if nobody says how many."""


@dataclass(frozen=True)
class FixedRounds:
    """How the steps of a run are cut into rounds.

    A round has `tau` steps; without an outer step (None) it ends where a checkpoint is
    due, each `every` steps, or with the run.
    """

    steps: int
    tau: int | None = None
    every: int | None = None

    def after(self, done: int) -> Iterator[tuple[int, int]]:
        """The first step of each round to come, from 0, and the step behind it."""
        while done < self.steps:
            each = self.tau or self.every or self.steps
            end = min(self.steps, done - done % each + each)
            yield done, end
            done = end

    def saves(self, done: int) -> bool:
        """Whether a checkpoint is due behind so many steps."""
        due = self.every is not None and not done % self.every
        return due or (self.every is not None and done == self.steps)

    def number(self, done: int) -> int:
        """The round that ends behind so many steps; without outer steps, the step."""
        return done // (self.tau or 1)


class FixedRun:
    """The rounds of one member, of which `worker` is the worker's number."""

    def __init__(
        self,
        trainer: BundleTrainer,
        data: BatchSource,
        rounds: FixedRounds,
        worker: int = 0,
        *,
        stepped: Stepped = lambda number, loss: None,
        agreement: Agreement | None = None,
        checkpoints: FixedCheckpoints | None = None,
    ) -> None:
        self._trainer, self._data, self._rounds = trainer, data, rounds
        self._worker, self._stepped = worker, stepped
        self._agreement, self._checkpoints = agreement, checkpoints
        self._state = WorkerState()
        self._state.load(trainer)
        self._steps = InnerSteps(self._state, _unsaid)
        self._steps.corpus, self._steps.stepped = data, self._made
        self._losses: list[np.ndarray] = []
        self._end = 0
        """The step behind the round under way."""

    def resume(self) -> tuple[int, list[str]]:
        """Go on from the newest whole checkpoint, if there is any.

        The steps that were made before it, and why newer ones are not used.
        """
        found = self._checkpoints and self._checkpoints.newest(self._rounds.steps)
        if found is None:
            return 0, []
        self._trainer.restore(found.snapshot, self._worker)
        self._losses = list(found.losses[self._worker])
        return len(self._losses), found.damaged

    def make(self, groups: Any = None) -> list[np.ndarray]:
        """Make the steps that are left; this member's losses, and what it keeps."""
        try:
            for begin, end in self._rounds.after(len(self._losses)):
                self._round(begin, end, groups)
            self._trainer.begin()
            return [np.stack(self._losses), *self._trainer.steps.values()]
        finally:
            self._steps.close()

    def _round(self, begin: int, end: int, groups: Any) -> None:
        """One round, with the outer step of its plan, and a checkpoint if it is due."""
        trainer, state, self._end = self._trainer, self._state, end
        number = self._rounds.number(end)
        lease = self._data.lease(self._worker, begin, end)
        order = LeaseGrant(turn=number, lease=lease, steps=end - begin)
        trainer.join(groups)
        self._steps.make(order, number, lambda: None)
        trainer.adopt(trainer.outer(1.0, groups))
        state.advance(number)
        self._compare(end)
        if self._checkpoints is not None and self._rounds.saves(end):
            state.hold(number)
            self._checkpoints.save(number, state.snapshot()[1], np.stack(self._losses))

    def _made(self, losses: list[Any]) -> None:
        """A step was made."""
        self._losses.append(np.asarray(losses[0]))
        done = len(self._losses)
        self._stepped(done, self._losses[-1])
        if self._agreement is not None and done != self._end:
            self._agreement.check(self._trainer.steps, done)

    def _compare(self, done: int) -> None:
        """Compare what members hold behind the outer step, if it is time to."""
        last = done == self._rounds.steps
        if self._agreement is not None and self._agreement.due(done, last=last):
            self._trainer.begin()
            self._agreement.check(self._trainer.steps, done, last=last)


def _unsaid(text: str) -> None:
    """Drop a line of the log: `pcp run` says what matters when it is done."""
