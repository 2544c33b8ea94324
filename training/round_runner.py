"""One round of one worker: group, inner steps, outer step, report.

An order names a round, an epoch, and a lease. What was done already is not
done again: a later epoch of the same round and lease repeats only the exchange,
a later round of the same epoch keeps the group.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pcp.errors import CollectiveAborted, RuntimeFault, StateMismatch
from pcp.training import tensors
from pcp.training.data import Corpus
from pcp.training.holding import Holding, Work
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
            work = self._inner(order)
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

    def _inner(self, order: RoundStart) -> Work:
        """The inner steps of the order, unless they are done already."""
        holding = self._holding
        trainer, done = holding.trainer, holding.work
        epoch = order.epoch if trainer.every_step else None
        wanted = (order.round, order.lease, epoch)
        if done and (done.round, done.lease, done.epoch) == wanted:
            return done
        began = time.monotonic()
        holding.undo_inner_steps()
        losses = []
        trainer.begin()
        positions = np.concatenate([np.arange(a, b) for a, b in order.lease])
        for mine in np.split(positions, order.steps):
            self._check_order(order)
            batches = mine.reshape(-1, trainer.batch)
            losses += trainer.step([self.corpus.read(b) for b in batches])
        for _ in range(order.longest - order.steps if trainer.every_step else 0):
            self._check_order(order)
            trainer.step([])
        holding.work = Work(
            round=order.round,
            lease=order.lease,
            loss=loss_value(losses),
            loss_first=loss_value(losses[:1]),
            steps=order.steps,
            tokens=size(order.lease) * trainer.block,
            seconds=time.monotonic() - began - trainer.waited,
            epoch=epoch,
        )
        return holding.work

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
