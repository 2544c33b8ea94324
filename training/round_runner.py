"""One round of one worker: group, inner steps, outer step, report.

An order names a round, an epoch, and a lease. What was done already is not
done again: a later epoch of the same round and lease repeats only the exchange,
a later round of the same epoch keeps the group. Where exchanges take place in
mid-round, the inner steps go on behind them, if all members that are left had the
same exchanges complete; they had, unless something is wrong.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pcp.errors import CollectiveAborted, RuntimeFault, StateMismatch
from pcp.training import tensors
from pcp.training.data import Corpus
from pcp.training.holding import Holding, Underway, Work
from pcp.training.leases import size
from pcp.training.protocol import (
    Commit,
    Computed,
    GroupFailed,
    Message,
    Prepared,
    RoundStart,
    Validated,
)
from pcp.training.state import shared_part
from pcp.training.trainer import loss_value
from pcp.training.usage import ProcessorTime, resident_bytes


class RoundRunner:
    """Carries out orders. `called_off()` says whether to stop in mid-round.

    `corpus` and `patience` (seconds in one exchange) come with the welcome.
    """

    def __init__(
        self,
        holding: Holding,
        endpoint: Any,
        *,
        send: Callable[[Message], None],
        log: Callable[[str], None],
        newest: Callable[[], RoundStart | None],
        called_off: Callable[[], bool],
    ) -> None:
        self._holding, self._endpoint = holding, endpoint
        self._send, self._log = send, log
        self._newest, self._called_off = newest, called_off
        self._corpus: Corpus | None = None
        self.patience = 60.0
        self._comm: Any = None
        self._counted = (0, 0)
        self._processor = ProcessorTime()

    @property
    def corpus(self) -> Corpus:
        """The data; `StateMismatch` before a shepherd named it."""
        if self._corpus is None:
            raise StateMismatch("the shepherd named no data")
        return self._corpus

    @corpus.setter
    def corpus(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def abandon(self, epoch: int) -> None:
        """Stop exchanges of groups before `epoch`; from any thread."""
        comm, reason = self._comm, f"the group of epoch {epoch} takes over"
        self._endpoint.cancel(reason)
        if comm is not None and comm.epoch < epoch:
            comm.abort(reason)

    def attempt(self, order: RoundStart) -> None:
        """Do what an order asks; report, rather than raise, a failed exchange."""
        holding = self._holding
        if holding.committed is None or order.round <= holding.committed:
            return
        prepared = holding.prepared
        if prepared and (prepared.round, prepared.epoch) == (order.round, order.epoch):
            self._send(prepared)
            return
        try:
            comm = self._group(order)
            holding.trainer.join(comm)
            work = self._inner(order, comm)
            self._send(Computed(round=order.round, epoch=order.epoch))
            if not self._superseded(order):
                self._exchange(order, work, comm)
        except RuntimeFault as error:
            if not self._superseded(order):
                self._report(order, error)

    def validate(self, commit: Commit) -> None:
        """Evaluate this worker's share of the held-out batches, if it has one."""
        if commit.validate_share is None:
            return
        first, step = commit.validate_share
        trainer, corpus = self._holding.trainer, self.corpus
        batches = range(first, corpus.validation_batches, step)
        total = sum(trainer.evaluate(corpus.validation(number)) for number in batches)
        self._send(
            Validated(round=commit.round, loss_sum=float(total), batches=len(batches))
        )

    def close(self) -> None:
        """Leave the group."""
        if self._comm is not None:
            self._comm.close()
            self._comm = None

    def _superseded(self, order: RoundStart) -> bool:
        newer = self._newest()
        return self._called_off() or (newer is not None and newer.epoch > order.epoch)

    def _report(self, order: RoundStart, error: RuntimeFault) -> None:
        self._log(f"round {order.round}, epoch {order.epoch}: {error}")
        self._send(
            GroupFailed(
                round=order.round,
                epoch=order.epoch,
                reason=str(error)[:4000],
                lost=getattr(error, "peer", None),
            )
        )

    def _group(self, order: RoundStart) -> Any:
        """The communicator of the order's epoch, with one shared state in it."""
        if self._comm is not None and self._comm.epoch == order.epoch:
            return self._comm
        self.close()
        comm = self._endpoint.form(
            order.epoch, order.members, order.rank, self.patience
        )
        comm.timeout = self.patience
        self._comm, self._counted = comm, (0, 0)
        holding, before = self._holding, order.round - 1
        state = {k: np.array(v) for k, v in holding.trainer.shared.items()}
        report = comm.param_sync(state, revision=before, source=0)
        if report.updated:
            self._log(f"caught up with round {before} inside the group")
        if report.updated or holding.committed != before:
            if holding.dirty:  # steps of a round that went on without this worker
                holding.undo_inner_steps()
            holding.trainer.adopt(state)
            holding.hold(before)
        return comm

    def _inner(self, order: RoundStart, comm: Any) -> Work:
        """The inner steps of the order, unless they are done already."""
        holding = self._holding
        trainer = holding.trainer
        epoch = order.epoch if trainer.every_step else None
        if trainer.resumes and not self._all_as_far(order, comm):
            holding.work = holding.underway = None
        done = holding.work
        wanted = (order.round, order.lease, epoch)
        if done and (done.round, done.lease, done.epoch) == wanted:
            return done
        underway = self._underway(order)
        self._steps(order, underway)
        holding.work = Work(
            round=order.round,
            lease=order.lease,
            loss=loss_value(underway.losses),
            loss_first=loss_value(underway.losses[:1]),
            steps=order.steps,
            tokens=size(order.lease) * trainer.block,
            seconds=underway.seconds - trainer.waited,
            epoch=epoch,
        )
        return holding.work

    def _all_as_far(self, order: RoundStart, comm: Any) -> bool:
        """Whether the members' exchanges of this round are complete to one point.

        If not, all of them begin the round again.
        """
        holding, mine = self._holding, -1
        for held in (holding.work, holding.underway):
            if held and (held.round, held.lease) == (order.round, order.lease):
                mine = holding.trainer.progress
        reached = comm.all_gather(np.array([mine], np.int64), tag="progress")
        if same := bool((reached == mine).all()):
            return same
        self._log(f"round {order.round} begins again: exchanges {reached.tolist()}")
        return same

    def _underway(self, order: RoundStart) -> Underway:
        """The inner steps that can be gone on with, or none."""
        holding = self._holding
        trainer, underway = holding.trainer, holding.underway
        wanted = (order.round, order.lease)
        if underway and (underway.round, underway.lease) == wanted:
            trainer.resume()
            return underway
        holding.undo_inner_steps()
        trainer.begin(order.steps, size(order.lease) * trainer.block)
        underway = Underway(order.round, order.lease)
        holding.underway = underway if trainer.resumes else None
        return underway

    def _steps(self, order: RoundStart, underway: Underway) -> None:
        """All steps of the order that are not made yet, and exchanges in between."""
        trainer, began = self._holding.trainer, time.monotonic()
        positions = np.concatenate([np.arange(a, b) for a, b in order.lease])
        try:
            for mine in np.split(positions, order.steps)[underway.steps :]:
                self._check_order(order)
                trainer.turn()
                batches = mine.reshape(-1, trainer.batch)
                losses = trainer.step([self.corpus.read(b) for b in batches])
                underway.losses += losses
                underway.steps += 1
            trainer.turn()
            for _ in range(order.longest - order.steps if trainer.every_step else 0):
                self._check_order(order)
                trainer.step([])
        finally:
            underway.seconds += time.monotonic() - began

    def _check_order(self, order: RoundStart) -> None:
        newer = self._newest() or order
        if self._called_off() or newer.round > order.round:
            raise CollectiveAborted("the round was called off")

    def _exchange(self, order: RoundStart, work: Work, comm: Any) -> None:
        """The outer step, made bit-identical, then reported as prepared."""
        began = time.monotonic() - self._holding.trainer.waited
        candidate = self._holding.trainer.outer(work.tokens, comm)
        # Members of different hardware round differently: rank 0's bits count.
        shared = shared_part(candidate)
        comm.param_sync(shared, revision=order.round, source=0)
        candidate |= shared
        sent, received = comm.bytes_sent, comm.bytes_received
        prepared = Prepared(
            round=order.round,
            epoch=order.epoch,
            digest=tensors.digest(shared),
            loss=work.loss,
            loss_first=work.loss_first,
            steps=work.steps,
            tokens=work.tokens,
            bytes_sent=sent - self._counted[0],
            bytes_received=received - self._counted[1],
            compute_seconds=work.seconds,
            exchange_seconds=time.monotonic() - began,
            processor_seconds=self._processor.lap(),
            resident_bytes=resident_bytes(),
        )
        self._counted = (sent, received)
        self._holding.propose(candidate, prepared)
        self._send(prepared)
