"""The inner steps of one worker on a lease, and their result."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pcp.errors import StateMismatch
from pcp.training.data.corpus import Corpus
from pcp.training.data.lease_pool import Range, size
from pcp.training.storage import nonfinite
from pcp.training.trainer.step_loop import loss_value
from pcp.training.wire.messages import (
    LeaseGrant,
    RoundStart,
)
from pcp.training.worker.read_ahead import ReadAhead
from pcp.training.worker.whereabouts import Place
from pcp.training.worker.worker_state import InnerResult, PartialRound, WorkerState


def share(order: RoundStart | LeaseGrant) -> float:
    """The weight of an order's steps: 1 for the most in a round, and for a grant's.

    Where all members make as many, their mean is exact.
    """
    if isinstance(order, LeaseGrant):
        return 1.0
    return order.weight * order.steps / order.longest


class InnerSteps:
    """Makes inner steps; `corpus` comes with the welcome."""

    def __init__(
        self, state: WorkerState, log: Callable[[str], None], place: Place | None = None
    ) -> None:
        self._state, self._log = state, log
        self.place = place or Place()
        """The whereabouts of the worker's thread."""
        self.stepped: Callable[[list[Any]], None] = lambda losses: None
        """Is told the losses of each step when it is made."""
        self._corpus: Corpus | None = None
        self._batches: ReadAhead | None = None
        self._expected: tuple[list[Range], int] | None = None
        """The lease that is read ahead, and the number of its steps that are done."""

    @property
    def corpus(self) -> Corpus:
        """The data; `StateMismatch` before the first `Welcome`."""
        if self._corpus is None:
            raise StateMismatch("the shepherd named no data")
        return self._corpus

    @corpus.setter
    def corpus(self, corpus: Corpus) -> None:
        self.close()
        self._corpus = corpus
        self._batches = ReadAhead(
            corpus.read, ahead=corpus.ahead, readers=corpus.readers
        )

    def close(self) -> None:
        """Stop reading ahead."""
        if self._batches is not None:
            self._batches.close()
        self._batches = self._expected = None

    def expect(self, order: RoundStart | LeaseGrant) -> None:
        """Begin to read the batches for the steps of an order that are not made yet."""
        work, partial_round = self._state.work, self._state.partial_round
        if work is not None and work.lease == order.lease:
            return
        same = partial_round is not None and partial_round.lease == order.lease
        self._read_from(order, partial_round.steps if partial_round and same else 0)

    def foresee(self, order: RoundStart) -> None:
        """Begin to read for the round behind this one, whose steps are made.

        What it will be is not said yet. But leases are given out in the order of the
        members, lowest positions first: while members stay and make as many steps, the
        next lease lies as far behind this one as all have taken. Of any other lease
        the batches are read when it comes, and those of this one are dropped.
        """
        if len(order.lease) != 1 or order.carried:
            return
        taken = size(order.lease) * len(order.members)
        lease = [(start + taken, stop + taken) for start, stop in order.lease]
        self._read_from(order.model_copy(update={"lease": lease}), 0)

    def _read_from(self, order: RoundStart | LeaseGrant, done: int) -> ReadAhead:
        """The batches of the steps after the first `done`, read ahead."""
        if self._batches is None:
            raise StateMismatch("the shepherd named no data")
        if self._expected != (order.lease, done):
            positions = np.concatenate([np.arange(a, b) for a, b in order.lease])
            rows = positions.reshape(order.steps, -1, self._state.trainer.batch)
            self._batches.begin([batch for step in rows[done:] for batch in step])
            self._expected = (order.lease, done)
        return self._batches

    def make(
        self,
        order: RoundStart | LeaseGrant,
        round_: int,
        check: Callable[[], None],
        padding: int = 0,
        epoch: int | None = None,
    ) -> InnerResult:
        """Make the inner steps that are not done, and note their result.
        `check()` raises to call them off; in `padding` steps the worker only takes part
        in exchanges.
        """
        state, trainer = self._state, self._state.trainer
        partial_round = self._partial_round(order, round_)
        self._steps(order, partial_round, check, padding)
        losses = [loss_value([loss]) for loss in partial_round.losses]
        bad = nonfinite.first(losses, order.steps)
        if bad is not None:
            self._log(f"loss is {bad[1]} at step {bad[0]} of round {round_}")
        state.work = InnerResult(
            round=round_,
            lease=order.lease,
            loss=loss_value(losses),
            loss_first=losses[0],
            steps=order.steps,
            tokens=size(order.lease) * trainer.block,
            seconds=partial_round.seconds - trainer.waited,
            data_wait=partial_round.data_wait,
            nonfinite=bad,
            metrics=dict(trainer.metrics),
            gradient_norm=trainer.gradient_norm,
            learning_rate=trainer.learning_rate,
            epoch=epoch,
        )
        return state.work

    def _partial_round(
        self, order: RoundStart | LeaseGrant, round_: int
    ) -> PartialRound:
        """The earlier inner steps that can be continued, or None."""
        state = self._state
        trainer, partial_round = state.trainer, state.partial_round
        wanted = (round_, order.lease)
        if partial_round and (partial_round.round, partial_round.lease) == wanted:
            trainer.resume(share(order))
            return partial_round
        state.undo_inner_steps()
        trainer.begin(order.steps, share(order))
        partial_round = PartialRound(round_, order.lease)
        state.partial_round = partial_round if trainer.resumes else None
        return partial_round

    def _steps(
        self,
        order: RoundStart | LeaseGrant,
        partial_round: PartialRound,
        check: Callable[[], None],
        padding: int,
    ) -> None:
        """Make all steps of the order that are not made yet, with inner exchanges."""
        trainer, began = self._state.trainer, time.monotonic()
        batches = self._read_from(order, partial_round.steps)
        self._expected = None  # from here on the samples are used up
        together = size(order.lease) // order.steps // trainer.batch
        try:
            while partial_round.steps < order.steps:
                check()
                self.place.enter("data")
                taken = [batches.take() for _ in range(together)]
                self.place.enter("step")
                trainer.turn()
                losses = trainer.step(taken)
                self.place.stepped()
                partial_round.losses += losses
                partial_round.steps += 1
                self.stepped(losses)
            trainer.turn()
            for _ in range(padding):
                check()
                self.place.enter("step")
                trainer.step([])
                self.place.stepped()
        finally:
            partial_round.data_wait += batches.waited
            partial_round.seconds += time.monotonic() - began
