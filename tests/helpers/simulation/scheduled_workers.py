"""Workers of a drawn schedule, which keep to the protocol and compute hashes.

What `pcp.training.worker.worker` and `round_runner` do, without threads: one thing at a
time, of which a newer order takes the place of an older one.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from helpers.models.bigram_numpy import BLOCK
from helpers.simulation.run_checks import Place, Violation
from helpers.simulation.scheduled_connections import Wire
from helpers.simulation.scheduled_groups import Group
from helpers.simulation.scheduled_inner_exchanges import Partial
from helpers.simulation.scheduled_islands import Evaluation, restored, together
from helpers.simulation.scheduled_threads import OwnThread

from pcp.training.data.lease_pool import size
from pcp.training.wire.message import (
    VERSION,
    Message,
)
from pcp.training.wire.messages import (
    AwaitedRanks,
    Commit,
    GroupFailed,
    Heartbeat,
    Hello,
    InnerExchangeReport,
    Lacking,
    LeaseGrant,
    Prepared,
    Push,
    Ready,
    Refused,
    Restore,
    RoundStart,
    Shutdown,
    Stalled,
    Welcome,
    Whereabouts,
)
from pcp.training.worker.orders_over import first_valid

if TYPE_CHECKING:
    from helpers.simulation.run_schedules import Schedule

STEP_SECONDS = 0.05
BEAT_SECONDS = 0.7


class Node(OwnThread):
    """One worker's process."""

    wire: Wire | None

    def __init__(self, schedule: "Schedule", name: str, address: str) -> None:
        super().__init__(schedule, name)
        self.address, self.wire = address, None
        self.coordinate = self.shape = 0
        self.place: Place = (0, 0)
        """Its island's shape, and its coordinate there."""
        self.held: tuple[int, str] | None = None
        """The round of the committed state, and the digest of its part."""
        self.prepared: Prepared | None = None
        self.work: tuple[int, Any, str, int] | None = None
        """Round and lease of the inner steps that are made, from which state, and in
        which inner epoch."""
        self._order: RoundStart | None = None
        self._restore: Restore | None = None
        """A message that its thread, which waits in a group, has yet to look at."""
        self.evaluation: Evaluation | None = None
        self.group: Group | None = None
        self.partial: Partial | None = None
        """A round with exchanges between its inner steps, as far as it is made."""
        self._welcomed = False
        """Whether the shepherd has answered on this connection."""
        self._run: str | None = None
        self._learning = 0
        self._factor = schedule.random.choice((1.0, 1.0, 2.0, 6.0))

    # Its process.

    def die(self) -> None:
        """Its process ends; its peers notice."""
        self._schedule.note("dies", self.name)
        self.alive = False
        if self.wire is not None:
            self.wire.cut()
        self._leave()
        for steps in self._schedule.steps_inside.values():
            self._schedule.after(0.02, steps.look)

    def _leave(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            group.without(self)

    # Its connection.

    def connect(self) -> None:
        """Dial, and say what is held."""
        if self.wire is not None and self.wire.open:
            return
        if self._schedule.run is None:
            pause = 0.1 + 0.2 * self._schedule.random.random()
            self.after(pause, self.connect, link=True)
            return
        self.wire, self._welcomed = Wire(self._schedule, self), False
        wire = self.wire
        held = self.held or (None, None)
        wire.to_shepherd(
            Hello(
                version=VERSION,
                worker=self.name,
                target="cpu",
                backend="cpu",
                device="drawn",
                address=self.address,
                run=self._run,
                bundle="1" * 64 if self._run else None,
                committed=held[0],
                digest=held[1],
                prepared=self.prepared,
                island=self.island,
                coordinate=None if self.island is None else self.coordinate,
                shape=self.shape,
            )
        )
        self._beat(wire)

    def _beat(self, wire: Wire) -> None:
        if wire is self.wire and wire.open:
            at = self.said()
            wire.to_shepherd(Heartbeat(meeting=self._inner_exchange(at), at=at))
            self.after(BEAT_SECONDS, partial(self._beat, wire), link=True)

    def lost(self, wire: Wire) -> None:
        """The connection ended; it makes another."""
        if self.alive and wire is self.wire:
            self.wire = None
            pause = 0.1 + 0.2 * self._schedule.random.random()
            self.after(pause, self.connect, link=True)

    def send(self, message: Message) -> None:
        """What is said before the shepherd's answer is lost, on this connection too."""
        if self.wire is not None and self._welcomed:
            self.wire.to_shepherd(message)
        else:
            self._schedule.lost[message.kind] += 1

    def receive(self, wire: Wire, message: Message) -> None:
        """The shepherd says something."""
        if not self.alive or wire is not self.wire or not wire.open:
            return
        if self.frozen:
            pause = self.frozen_until - self._schedule.now
            self.after(pause, lambda: self.receive(wire, message))
            return
        act = _RECEIVERS.get(type(message))
        if act is not None and (act is Node._on_stalled or not self.hung):
            act(self, message)

    # What it is told.

    def _on_welcome(self, message: Welcome) -> None:
        self._run, done = message.run, self.prepared
        place, self.place = self.place, (message.shape, message.coordinate)
        if place != self.place:
            self.held = self.work = self.partial = done = self.prepared = None
        self.island, (self.shape, self.coordinate) = message.island, self.place
        if done and (message.committed, message.digest) == (done.round, done.digest):
            self._hold((done.round, done.digest))
        self._welcomed = True
        if self.evaluation is not None:
            self.evaluation.ends()

    def _on_restore(self, message: Restore) -> None:
        self._restore = message
        last = -1 if self._order is None else self._order.epoch
        waits = self.group and self.at[0] in ("forming", "exchange")
        if not waits or first_valid(message, last) > last:
            self._called_off()

    def _called_off(self) -> bool:
        """Whether a `Restore` came, maybe while it waited: then it is heeded."""
        message, self._restore = self._restore, None
        if message is None:
            return False
        self._leave()
        if self.evaluation is not None:
            self.evaluation.call_off()
        self.held = self.prepared = self.work = self.partial = self.evaluation = None
        self._learning += 1
        self.enters("restoring")
        self.begin(0.05, lambda: self._restored(message))
        return True

    def _restored(self, message: Restore) -> None:
        state = restored(self._schedule, self, message)
        self.enters("waiting")
        if state is None:
            self.begin(0.3, lambda: self.send(Lacking(round=message.round)))
        else:
            self._hold(state)
            self._say_ready()

    def _on_commit(self, message: Commit) -> None:
        done = self.prepared
        if done is None or done.round != message.round:
            return
        if done.digest != message.digest:
            raise Violation(f"{self.name} prepared another round {done.round}")
        self._hold((message.round, message.digest))
        self._schedule.happens("committed", self)
        if message.validate_share is not None:
            self.evaluation = Evaluation(self, message, self._order)
            self.enters("validating")
            self.begin(0.02, partial(self.evaluation.meets, self._schedule))

    def evaluated(self, said: Message, order: RoundStart | LeaseGrant | None) -> None:
        """Its batches are evaluated, or can't be; an order may have come meanwhile."""
        self.evaluation = None
        self.enters("waiting")
        self.send(said)
        if order is not None:
            _RECEIVERS[type(order)](self, order)

    def _on_shutdown(self, message: Shutdown) -> None:
        self.alive = False
        if "drained" in message.reason:  # or there may be too few for a first round
            self._schedule.after(0.5, self._schedule.start_worker)
        if self.wire is not None:
            self.wire.cut()
        self._leave()

    def _on_stalled(self, message: Stalled) -> None:
        """It ends, and is started again."""
        self._schedule.unhung += self.hung
        self.die()
        self._schedule.after(0.5, lambda: self._schedule.start_worker(self.name))

    def _on_refused(self, message: Refused) -> None:
        raise Violation(f"{self.name} was refused: {message.reason}")

    def _on_learn(self, order: LeaseGrant) -> None:
        if self.evaluation is not None:
            self.evaluation.ends(order)
            return
        if self.held is None:
            return
        self._learning += 1
        learning, lease = self._learning, list(order.lease)
        seconds = order.steps * STEP_SECONDS * self._factor
        if self.work is not None and self.work[1] == lease:
            self.send(Push(turn=order.turn, seconds=seconds))
            return
        self.enters("step")

        def learned() -> None:
            if learning == self._learning and self.held is not None:
                self.steps += order.steps
                self.enters("waiting")
                self.work = (self.held[0] + 1, lease, self.held[1], 0)
                self.send(Push(turn=order.turn, seconds=seconds))

        self.after(seconds, learned)

    def _on_round_start(self, order: RoundStart) -> None:
        if self.evaluation is not None:
            self.evaluation.ends(order)
            return
        if self._called_off() or self.held is None:
            return
        if order.round <= self.held[0]:
            self._say_ready()
            return
        done = self.prepared
        if done and (done.round, done.epoch) == (order.round, order.epoch):
            self.send(done)
            return
        self._leave()
        self.enters("forming")
        self._doing += 1
        self._order, work = order, self.work
        if order.carried and (work is None or work[1] != list(order.lease)):
            self._fails(order, "the steps on this lease are gone", order.rank)
            return
        groups = self._schedule.groups
        column = 0 if order.shapes else self.coordinate
        at = (order.epoch, order.round, column)
        group = groups.get(at)
        if group is None:
            group = groups[at] = Group(self._schedule, order, column)
        self.group = group
        if not self.hung:
            group.arrives(self, order)

    def awaits(self) -> AwaitedRanks | None:
        """Whom it waits for; None: it is in no call with others."""
        return None if self.group is None else self.group.awaits(self)

    # A round.

    def take(self, order: RoundStart, state: tuple[int, str]) -> None:
        """Have the group's state, and make the inner steps."""
        if self._called_off():
            return
        held = self.held
        if order.carried:
            self.held = state
        elif held != state:
            self._hold(state)
        if held != state:
            self._say_ready()
        work, lease = self.work, list(order.lease)
        if self._schedule.plan.exchanges_inside:
            return  # the group compares first how far its members are
        made = work and (*work[:2], work[3])
        if order.carried or made == (order.round, lease, order.inner_epoch):
            self._computed(order)
            return
        self.enters("step")
        seconds = order.steps * STEP_SECONDS * self._factor
        self.begin(seconds, lambda: self._steps_inside(order, state[1]))

    def _steps_inside(self, order: RoundStart, base: str) -> None:
        """The ranks of an island make their steps together."""
        act, waits = partial(self._stepped, order, base), self.still()
        run = self._schedule
        together(run, order, "steps", self, act, waits, self._fails_inside)

    def _fails_inside(self, lost: int) -> None:
        """A rank of its island is no more."""
        if self._order is not None and self.alive and not self.hung:
            self._leave()
            self.enters("waiting")
            order, why = self._order, "a rank of the island is gone"
            self._doing += 1
            said = GroupFailed(round=order.round, epoch=order.epoch, reason=why)
            self.send(said.model_copy(update={"lost": [lost], "inside": True}))

    def _stepped(self, order: RoundStart, base: str) -> None:
        self.work = (order.round, list(order.lease), base, order.inner_epoch)
        self._computed(order)

    def _computed(self, order: RoundStart) -> None:
        self.steps += order.steps
        self.send(said := self.part(order, self.partial))
        if bad := math.isnan(said.moved or 0.0):
            self.work = self.partial = None
        self.enters("waiting" if bad else "exchange")
        if self.group is not None and not self.hung and not bad:
            self.group.computed(self)

    def go_on(self, order: RoundStart, partial: Partial) -> None:
        """Make the inner steps up to the next exchange, or to the end of the round."""
        if self._called_off():
            return
        self.partial = partial
        legs = partial.legs
        self.enters("step")
        if len(partial.exchanged) == legs:
            self._stepped(order, partial.base)
            return
        seconds = order.steps * STEP_SECONDS * self._factor / legs
        self.begin(seconds, lambda: self._meets(order))

    def _meets(self, order: RoundStart) -> None:
        if self.group is not None and self.partial is not None:
            self.partial.since = self._schedule.now
            self.steps += 1
            self.spoils_step(order, self.partial)
            self.enters("exchange")
            if not self.hung:
                self.group.inner_exchanges.enters(self, order)

    def _inner_exchange(self, at: Whereabouts) -> InnerExchangeReport | None:
        """What a heartbeat says of a round that it is at."""
        if self.group is None or self._order is None:
            return None
        inside = self._schedule.plan.exchanges_inside
        said = self.group.inner_exchanges.of(self, at) if inside else None
        return said or self.meets(self._order, at)

    def propose(self, order: RoundStart, digest: str) -> None:
        """The exchange has happened; it waits for the commit."""
        self.enters("waiting")
        self.group = None
        self.prepared = done = Prepared(
            round=order.round,
            epoch=order.epoch,
            digest=digest,
            loss=1.0,
            loss_first=1.0,
            steps=order.steps,
            tokens=size(order.lease) * BLOCK,
            bytes_sent=0,
            bytes_received=0,
            compute_seconds=order.steps * STEP_SECONDS * self._factor,
            exchange_seconds=0.01,
        )
        self._schedule.checks.voted(self.island or self.name, self.place, done)
        self.send(done)
        self._schedule.happens("prepared", self)
        self._called_off()

    def fails(self, order: RoundStart, why: str, *lost: int) -> None:
        """Its group can do nothing any more."""
        if self.hung:  # in that order still
            return
        self.enters("waiting")
        self.group = None
        if not self._called_off():
            self.begin(0.02, lambda: self._fails(order, why, *lost))

    def _fails(self, order: RoundStart, why: str, *lost: int) -> None:
        at = {"round": order.round, "epoch": order.epoch}
        self.send(GroupFailed(**at, reason=why, lost=[*lost]))

    def _hold(self, state: tuple[int, str]) -> None:
        self.held, self.prepared, self.work = state, None, None
        self.partial = None
        self._schedule.checks.holds(self.name, self.place, state)

    def _say_ready(self) -> None:
        assert self.held is not None
        self.send(Ready(round=self.held[0], digest=self.held[1]))


_RECEIVERS: dict[type[Message], Callable[[Node, Any], None]] = {
    Welcome: Node._on_welcome,
    Restore: Node._on_restore,
    Commit: Node._on_commit,
    Shutdown: Node._on_shutdown,
    Stalled: Node._on_stalled,
    Refused: Node._on_refused,
    LeaseGrant: Node._on_learn,
    RoundStart: Node._on_round_start,
}
