"""One round of one worker: group, inner steps, outer step, report.

Where learners have clocks of their own, the inner steps come before the order, which
then says that the lease is carried: what was made of an older state is kept, and moves
along with the newest one.

An order names a round, an epoch, and a lease. Work that is done already is not
done again: a later epoch of the same round and lease repeats only the exchange,
a later round of the same epoch keeps the group. Where exchanges take place in
mid-round, the inner steps go on behind them, if all members that are left had the
same exchanges complete; they had, unless something is wrong.
"""

import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pcp.errors import CollectiveAborted, RuntimeFault, StateMismatch
from pcp.runtime import fetch_snapshot
from pcp.training.data.corpus import Corpus
from pcp.training.data.lease_pool import size
from pcp.training.storage import nonfinite, safetensors_io
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import OUTER, PARAMETER, shared_part
from pcp.training.trainer.bundle_trainer import loss_value
from pcp.training.wire.messages import (
    Commit,
    Computed,
    GroupFailed,
    InnerExchangeReport,
    LeaseGrant,
    Message,
    Prepared,
    Push,
    RoundStart,
    Validated,
)
from pcp.training.worker.resource_usage import ProcessorTime, resident_bytes
from pcp.training.worker.worker_state import InnerResult, PartialRound, WorkerState

_NOT_BEGUN = -2
"""In place of an exchange's epoch, in a round that a member has not begun."""

SILENCE_SECONDS = 10.0
"""A holder of a state that sends none of it for so long is taken for dead."""


def let_go(error: BaseException) -> None:
    """Drop what the frames of a failed exchange hold: arrays of the device.

    The group that failed keeps the error, and so it may live longer than the device.
    """
    held: BaseException | None = error
    while held is not None:
        traceback.clear_frames(held.__traceback__)
        held = held.__cause__ or held.__context__


class RoundRunner:
    """Carries out orders. `called_off()` says whether to stop in mid-round.

    `corpus` and `timeout` (seconds in one exchange) come with the welcome.
    """

    def __init__(
        self,
        state: WorkerState,
        endpoint: Any,
        *,
        send: Callable[[Message], None],
        log: Callable[[str], None],
        newest: Callable[[], RoundStart | None],
        called_off: Callable[[], bool],
        wanted: Callable[[], LeaseGrant | None] = lambda: None,
    ) -> None:
        """`newest()` is an order that waits, `wanted()` a lease that does."""
        self._state, self._endpoint = state, endpoint
        self._send, self._log = send, log
        self._newest, self._wanted = newest, wanted
        self._called_off = called_off
        self._corpus: Corpus | None = None
        self.timeout = 60.0
        self._comm: Any = None
        self._counted = (0, 0)
        self._fetched = 0
        """Bytes of states that were fetched, and others sent, since the last report."""
        self._order: RoundStart | None = None
        """The order that is carried out."""
        self._forming: float | None = None
        """Since when its group is being formed."""
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
        state = self._state
        if state.committed is None:
            return
        if order.round <= state.committed:
            # It came late, or the run went back while this worker was ahead of it.
            self._send(state.ready())
            return
        prepared = state.prepared
        if prepared and (prepared.round, prepared.epoch) == (order.round, order.epoch):
            self._send(prepared)
            return
        try:
            self._order, self._forming = order, time.monotonic()
            self._check_carried(order)
            comm = self._group(order)
            self._forming = None
            state.trainer.join(comm)
            work = self._inner(order, comm)
            self._send(Computed(round=order.round, epoch=order.epoch))
            if not self._superseded(order):
                self._exchange(order, work, comm)
        except RuntimeFault as error:
            let_go(error)
            if not self._superseded(order):
                self._report(order, error)
        finally:
            self._order = self._forming = None

    def learn(self, order: LeaseGrant) -> None:
        """Make the inner steps of a lease on this worker's own clock; say so."""
        state = self._state
        if state.committed is None:
            return  # what it was for was taken away meanwhile
        try:
            done = state.work
            if done is None or done.lease != order.lease:
                done = self._learned(order, state.committed + 1)
        except CollectiveAborted as error:
            let_go(error)
            return
        self._send(Push(turn=order.turn, seconds=done.seconds))

    def inner_exchange(self) -> InnerExchangeReport | None:
        """How far this worker is in a round with exchanges in between; any thread."""
        order, forming = self._order, self._forming
        if order is None:
            return None
        if forming is not None:
            entered, waited = 0, time.monotonic() - forming
        else:
            entered, waited = self._state.trainer.inner_exchange
            entered += 1
        return InnerExchangeReport(
            round=order.round, epoch=order.epoch, entered=entered, waits=waited
        )

    def validate(self, commit: Commit) -> None:
        """Evaluate this worker's share of the held-out batches, if it has one."""
        if commit.validate_share is None:
            return
        first, step = commit.validate_share
        trainer, corpus = self._state.trainer, self.corpus
        batches = range(first, corpus.validation_batches, step)
        total = sum(trainer.evaluate(corpus.validation(number)) for number in batches)
        self._send(
            Validated(round=commit.round, loss_sum=float(total), batches=len(batches))
        )

    def close(self) -> None:
        """Leave the group; exchanges under way are of a round that is given up."""
        if self._comm is not None:
            self._comm.close(timeout=0)
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
        comm = self._endpoint.form(order.epoch, order.members, order.rank, self.timeout)
        comm.timeout = self.timeout
        self._comm, self._counted = comm, (0, 0)
        state, before = self._state, order.round - 1
        held = state.committed
        arrays = self._newest_state(order)
        report = comm.param_sync(arrays, revision=before, source=0)
        if report.updated and not order.carried:
            self._log(f"caught up with round {before} inside the group")
        if report.updated or state.committed != before:
            self._take(order, arrays)
        if state.committed != held:
            self._send(state.ready())
        return comm

    def _take(self, order: RoundStart, arrays: Arrays) -> None:
        """Hold the group's state from now on."""
        state, before = self._state, order.round - 1
        if order.carried:
            state.catch_up(before, arrays)
            return
        if state.dirty:  # steps of a round that went on without this worker
            state.undo_inner_steps()
        state.trainer.adopt(arrays)
        state.hold(before)

    def _newest_state(self, order: RoundStart) -> Arrays:
        """The shared state; of rank 0 that of the round before, wherever it is."""
        state, before = self._state, order.round - 1
        mine = {k: np.array(v) for k, v in state.trainer.shared.items()}
        if order.rank or order.source is None:
            return mine
        wanted = order.digest
        if state.committed == before and wanted in (
            None,
            safetensors_io.digest(mine),
        ):
            return mine
        revision, arrays = fetch_snapshot(
            order.source,
            self.timeout,
            only=(PARAMETER, OUTER),
            silence=SILENCE_SECONDS,
            key=self._endpoint.key,
            tls=self._endpoint.tls,
        )
        if revision != before or (wanted and safetensors_io.digest(arrays) != wanted):
            raise RuntimeFault(f"{order.source} holds another state of round {before}")
        self._fetched += sum(array.nbytes for array in arrays.values())
        state.catch_up(before, arrays)
        return {k: np.array(v) for k, v in arrays.items()}

    def _inner(self, order: RoundStart, comm: Any) -> InnerResult:
        """The inner steps of the order, unless they are done already."""
        state = self._state
        trainer = state.trainer
        epoch = order.epoch if trainer.every_step else None
        if trainer.resumes and not self._all_as_far(order, comm):
            state.work = state.partial_round = None
        done = state.work
        wanted = (order.round, order.lease, epoch)
        if done and (done.round, done.lease, done.epoch) == wanted:
            return done
        if order.carried and done is not None:
            return done
        padding = order.longest - order.steps if trainer.every_step else 0
        check = partial(self._check_order, order)
        return self._make(order, order.round, check, padding, epoch)

    def _check_carried(self, order: RoundStart) -> None:
        """The steps on a lease that is carried must be there."""
        done = self._state.work
        if order.carried and (done is None or done.lease != order.lease):
            raise CollectiveAborted("the steps on this lease are gone")

    def _learned(self, order: LeaseGrant, round_: int) -> InnerResult:
        """Inner steps outside of a round, until they are called off."""

        def check() -> None:
            newer = self._wanted()
            if self._called_off() or (newer and newer.lease != order.lease):
                raise CollectiveAborted("the lease was taken back")

        return self._make(order, round_, check)

    def _make(
        self,
        order: RoundStart | LeaseGrant,
        round_: int,
        check: Callable[[], None],
        padding: int = 0,
        epoch: int | None = None,
    ) -> InnerResult:
        """Make inner steps that are not done, and note what they came to."""
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
            nonfinite=bad,
            epoch=epoch,
        )
        return state.work

    def _all_as_far(self, order: RoundStart, comm: Any) -> bool:
        """Whether the members completed the same exchanges of this round together.

        If not, all of them begin the round again. As many exchanges are not enough: a
        member that comes back may have completed its own in a group of which the
        others have begun again since.
        """
        state = self._state
        mine = np.array([state.trainer.progress], np.int64)
        begun = [
            (held.round, held.lease)
            for held in (state.work, state.partial_round)
            if held is not None
        ]
        if (order.round, order.lease) not in begun:
            mine[:] = _NOT_BEGUN
        reached = comm.all_gather(mine, tag="progress")
        if same := bool((reached == mine[0]).all()):
            return same
        self._log(f"round {order.round} begins again: exchanges {reached.tolist()}")
        return same

    def _partial_round(
        self, order: RoundStart | LeaseGrant, round_: int
    ) -> PartialRound:
        """The inner steps that can be gone on with, or none."""
        state = self._state
        trainer, partial_round = state.trainer, state.partial_round
        wanted = (round_, order.lease)
        if partial_round and (partial_round.round, partial_round.lease) == wanted:
            trainer.resume()
            return partial_round
        state.undo_inner_steps()
        trainer.begin(order.steps, size(order.lease) * trainer.block)
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
        """All steps of the order that are not made yet, and exchanges in between.

        `padding` are steps on the others' batches.
        """
        trainer, began = self._state.trainer, time.monotonic()
        positions = np.concatenate([np.arange(a, b) for a, b in order.lease])
        try:
            for mine in np.split(positions, order.steps)[partial_round.steps :]:
                check()
                trainer.turn()
                batches = mine.reshape(-1, trainer.batch)
                losses = trainer.step([self.corpus.read(b) for b in batches])
                partial_round.losses += losses
                partial_round.steps += 1
            trainer.turn()
            for _ in range(padding):
                check()
                trainer.step([])
        finally:
            partial_round.seconds += time.monotonic() - began

    def _check_order(self, order: RoundStart) -> None:
        newer = self._newest() or order
        if self._called_off() or newer.round > order.round:
            raise CollectiveAborted("the round was called off")

    def _exchange(self, order: RoundStart, work: InnerResult, comm: Any) -> None:
        """The outer step, made bit-identical, then reported as prepared."""
        began = time.monotonic() - self._state.trainer.waited
        weight = work.tokens * order.weight
        candidate = self._state.trainer.outer(weight, comm)
        # Members of different hardware round differently: rank 0's bits count.
        shared = shared_part(candidate)
        comm.param_sync(shared, revision=order.round, source=0)
        candidate |= shared
        sent, received = comm.bytes_sent, comm.bytes_received
        prepared = Prepared(
            round=order.round,
            epoch=order.epoch,
            digest=safetensors_io.digest(shared),
            loss=work.loss,
            loss_first=work.loss_first,
            steps=work.steps,
            tokens=work.tokens,
            # Fetched bytes were sent too, in this round, if by another worker.
            bytes_sent=sent - self._counted[0] + self._fetched,
            bytes_received=received - self._counted[1] + self._fetched,
            compute_seconds=work.seconds,
            exchange_seconds=time.monotonic() - began,
            processor_seconds=self._processor.lap(),
            resident_bytes=resident_bytes(),
            nonfinite_step=None if work.nonfinite is None else work.nonfinite[0],
            nonfinite_loss=None if work.nonfinite is None else work.nonfinite[1],
        )
        self._counted, self._fetched = (sent, received), 0
        self._state.propose(candidate, prepared)
        self._send(prepared)
