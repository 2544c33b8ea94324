"""One round of one worker: group, inner steps, outer step, report.

In asynchronous rounds a learner makes its inner steps before the order, and the order
says that the lease is carried: the delta against an older state is kept, and moved
along to the newest state.

An order names a round, an epoch, and a lease. Finished work is not repeated: a later
epoch of the same round and lease repeats only the exchange, a later round of the same
epoch keeps the group. In a round with inner exchanges the inner steps go on after the
last of them, if all remaining members have completed the same exchanges; they have,
unless there is a fault.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pcp.errors import (
    CollectiveAborted,
    PeerLost,
    RuntimeFault,
    Timeout,
    let_go,
)
from pcp.training.storage.state_names import shared_part
from pcp.training.trainer.norms import change, spoiled, within_rounding
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.messages import (
    Commit,
    Computed,
    GroupFailed,
    Heartbeat,
    InnerExchangeReport,
    LeaseGrant,
    Prepared,
    Push,
    RoundStart,
    Validated,
)
from pcp.training.worker.inner_steps import InnerSteps, share
from pcp.training.worker.resource_usage import ProcessorTime, resident_bytes
from pcp.training.worker.round_group import RoundGroup
from pcp.training.worker.worker_state import InnerResult, WorkerState

_ASKED_SECONDS = 1.0
"""A worker that is in an exchange for so long says for whom it waits."""
_NOT_BEGUN = -2
"""Stands for the epoch of an exchange in a round that a member has not begun."""


def _computed(order: RoundStart, work: InnerResult, moved: float) -> Computed:
    """The report of inner steps to the shepherd."""
    return Computed(
        round=order.round,
        epoch=order.epoch,
        loss=work.loss,
        moved=moved,
        nonfinite_step=None if work.nonfinite is None else work.nonfinite[0],
    )


def missing(error: RuntimeFault) -> list[int]:
    """The ranks that did not come to an exchange which failed by this."""
    if isinstance(error, PeerLost) and error.peer is not None:
        return [error.peer]
    return [*error.peers] if isinstance(error, Timeout) else []


class RoundRunner:
    """Carries out orders. `called_off()` says whether to stop inside a round.

    `inner_steps` and `group` get the corpus and the timeout of the `Welcome`.
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
        """`newest()` is the waiting order, `wanted()` the waiting lease, if any."""
        self._state, self._send, self._log = state, send, log
        self._newest, self._wanted = newest, wanted
        self._called_off = called_off
        self.inner_steps = InnerSteps(state, log)
        place = self.inner_steps.place
        self.group = RoundGroup(state, endpoint, place=place, send=send, log=log)
        self._order: RoundStart | None = None
        """The order that is being carried out."""
        self._forming: float | None = None
        """When the formation of its group began."""
        self._processor = ProcessorTime()

    def attempt(self, order: RoundStart) -> None:
        """Carry out an order; report, rather than raise, a failed exchange."""
        state = self._state
        if state.committed is None:
            return
        if order.round <= state.committed:
            # The order is late, or the run went back while this worker was ahead.
            self._send(state.ready())
            return
        prepared = state.prepared
        if prepared and (prepared.round, prepared.epoch) == (order.round, order.epoch):
            self._send(prepared)
            return
        try:
            self._order, self._forming = order, time.monotonic()
            self.inner_steps.place.enter("forming")
            self._check_carried(order)
            self.inner_steps.expect(order)  # batches are read while the group is formed
            if self._superseded(order):
                return  # without it the group is never formed
            comm = self.group.form(order)
            self._forming = None
            state.trainer.join(self.group.groups)
            work = self._inner(order, comm)
            self.inner_steps.foresee(order)  # while the outer step is made
            moved = state.trainer.moved
            self.inner_steps.place.enter("exchange")
            self._send(_computed(order, work, moved))
            if not (math.isfinite(work.loss) and math.isfinite(moved)):
                # No exchange: one such number would be in every member's result.
                state.work = state.partial_round = None
            elif not self._superseded(order):
                self._exchange(order, work, comm)
        except RuntimeFault as error:
            let_go(error)
            if not self._superseded(order):
                self._report(order, error, inside=self.group.failed_inside)
        finally:
            self._order = self._forming = None
            self.inner_steps.place.enter("waiting")

    def learn(self, order: LeaseGrant) -> None:
        """Make the inner steps of a lease on this worker's own clock, and push them."""
        state = self._state
        if state.committed is None:
            return  # the lease was taken away meanwhile
        try:
            done = state.work
            if done is None or done.lease != order.lease:
                done = self._learned(order, state.committed + 1)
        except CollectiveAborted as error:
            let_go(error)
            return
        self._send(Push(turn=order.turn, seconds=done.seconds))

    def inner_exchange(self) -> InnerExchangeReport | None:
        """This worker's progress in inner exchanges of a round; from any thread."""
        order, forming = self._order, self._forming
        if order is None:
            return None
        if forming is not None:
            entered, waited = 0, time.monotonic() - forming
        else:
            entered, waited = self._state.trainer.inner_exchange
            entered += 1
        return InnerExchangeReport(
            round=order.round,
            epoch=order.epoch,
            entered=entered,
            waits=waited,
            **self._company(),
        )

    def _company(self) -> dict[str, Any]:
        """For whom this worker waits, or for how long it is alone, where others are."""
        at = self.inner_steps.place.said()
        if not at.with_others or at.since < _ASKED_SECONDS:
            return {}
        awaited = self.group.awaited()
        if awaited is None:
            return {}
        return {"awaits": awaited} if awaited else {"alone": at.since}

    def beat(self) -> Heartbeat:
        """A heartbeat with the whereabouts of this worker; from any thread."""
        report = self.inner_exchange()
        # The formation of a group counts as an exchange of the members that wait in it.
        meets = report is not None and report.entered > 0
        at = self.inner_steps.place.said(report.waits if report and meets else None)
        return Heartbeat(meeting=report, at=at)

    def validate(self, commit: Commit) -> None:
        """Evaluate this worker's share of the held-out batches, if it has one.

        The ranks of an island evaluate it together, in the groups of their inner steps:
        those of the outer step end with the next attempt, which other islands' deaths
        bring about.
        """
        if commit.validate_share is None:
            return
        first, step = commit.validate_share
        trainer, corpus = self._state.trainer, self.inner_steps.corpus
        batches = range(first, corpus.validation_batches, step)
        place, losses = self.inner_steps.place, []
        try:
            if self.group.of_island:
                trainer.join(self.group.groups)
            for number in batches:
                place.enter("validating")
                losses.append(trainer.evaluate(corpus.validation(number)))
                place.stepped()
        except RuntimeFault as error:
            let_go(error)
            if not self._called_off():
                self._report(commit, error, inside=True)
            return
        finally:
            place.enter("waiting")
        total = sum(losses)
        self._send(
            Validated(round=commit.round, loss_sum=float(total), batches=len(batches))
        )

    def _superseded(self, order: RoundStart) -> bool:
        newer = self._newest()
        return self._called_off() or (newer is not None and newer.epoch > order.epoch)

    def _report(
        self, order: RoundStart | Commit, error: RuntimeFault, *, inside: bool
    ) -> None:
        self._log(f"round {order.round}, epoch {order.epoch}: {error}")
        self._send(
            GroupFailed(
                round=order.round,
                epoch=order.epoch,
                reason=str(error)[:4000],
                lost=[] if inside else missing(error),
                inside=inside,
            )
        )

    def _inner(self, order: RoundStart, comm: Any) -> InnerResult:
        """The inner steps of the order, made unless they are done already."""
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
        return self.inner_steps.make(order, order.round, check, padding, epoch)

    def _check_carried(self, order: RoundStart) -> None:
        """`PeerLost`, of this rank itself, without the steps on a carried lease."""
        done = self._state.work
        if order.carried and (done is None or done.lease != order.lease):
            raise PeerLost("the steps on this lease are gone", peer=order.rank)

    def _learned(self, order: LeaseGrant, round_: int) -> InnerResult:
        """Make inner steps outside of a round, until they are called off."""

        def check() -> None:
            newer = self._wanted()
            if self._called_off() or (newer and newer.lease != order.lease):
                raise CollectiveAborted("the lease was taken back")

        return self.inner_steps.make(order, round_, check)

    def _all_as_far(self, order: RoundStart, comm: Any) -> bool:
        """Whether all members have completed the same exchanges of this round together.

        If not, all members begin the round again. An equal number of exchanges is not
        enough: a member that comes back may have completed its exchanges in a group
        whose other members have begun the round again since.
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

    def _check_order(self, order: RoundStart) -> None:
        newer = self._newest() or order
        if self._called_off() or newer.round > order.round:
            raise CollectiveAborted("the round was called off")

    def _exchange(self, order: RoundStart, work: InnerResult, comm: Any) -> None:
        """Make the outer step, bit-identical on all members; report `Prepared`."""
        began = time.monotonic() - self._state.trainer.waited
        outside = self.group.groups_outside
        candidate = self._state.trainer.outer(share(order), outside)
        # Members of different hardware round differently: the bits of rank 0 count, if
        # they differ from this member's by rounding alone.
        shared, before = shared_part(candidate), self._state.trainer.shared
        accept = partial(within_rounding, mine=shared, before=before)
        synced = comm.param_sync(shared, revision=order.round, source=0, accept=accept)
        self.group.agree(shared, order.round)
        candidate |= shared
        sent, received = self.group.moved_bytes()
        prepared = Prepared(
            round=order.round,
            epoch=order.epoch,
            digest=self._state.digest(shared),
            loss=work.loss,
            loss_first=work.loss_first,
            steps=work.steps,
            tokens=work.tokens,
            bytes_sent=sent,
            bytes_received=received,
            compute_seconds=work.seconds,
            exchange_seconds=time.monotonic() - began,
            data_wait_seconds=work.data_wait,
            processor_seconds=self._processor.lap(),
            resident_bytes=resident_bytes(),
            nonfinite_step=None if work.nonfinite is None else work.nonfinite[0],
            nonfinite_loss=None if work.nonfinite is None else work.nonfinite[1],
            metrics=work.metrics or None,
            gradient_norm=work.gradient_norm,
            learning_rate=work.learning_rate,
            moved=change(shared, before, self._state.trainer.parts),
            spoiled=[name[:200] for name in spoiled(shared, before)[:3]],
            round_trip=self.group.round_trip,
            disputes=synced.refused,
        )
        self._state.propose(candidate, prepared)
        self._send(prepared)
