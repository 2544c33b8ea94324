"""Rounds of learners, each with its own clock: asynchronous local SGD.

Each learner makes the inner steps of its own lease, from the state that it holds. Its
push then waits for its turn, and is merged. A merge is a round, of one learner as a
rule; with `quorum` and `grace_seconds` of the experiment, of all pushes that came until
the quorum was reached and the grace was over. No other learner waits.

    learner a    steps ───────────► push │ merge 4 │ steps ──────────────►
    learner b    ────────► push │ merge 3 │ steps ─────────► push │ merge 5 │
                                      └─ state ─►┘      └──── state ───►┘

There is no parameter server: the learner that made the newest version serves it. A
learner that pushes fetches the newest state from that holder, moves its own parameters
along (θ_m + θ_newest - θ_begin, so that its delta is against the state in which it
began), runs the outer step, and holds the next version when the ledger has it. So each
learner holds the version of its last push. When the holder of the newest version dies
before a learner has fetched it, the run goes back to the newest version that a learner
or a checkpoint holds. The dead learner's own push is lost, and its samples are given
out again; inner steps and pushes of other learners stay as they are.

The ledger has each lease as it is given out; a round consumes the leases of its
members.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.checkpointing import Saver
from pcp.training.coordinator.events import SavedState
from pcp.training.coordinator.roster import READY, Member
from pcp.training.coordinator.rounds import Rounds, share
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.validation import Validation
from pcp.training.data.lease_pool import LeasePool, Range, size
from pcp.training.wire.messages import (
    GroupFailed,
    LeaseGrant,
    Push,
)

_FETCHES = 2


@dataclass
class LearnerLease:
    """A lease on which a learner works."""

    turn: int
    lease: list[Range]
    arrived: float | None = None
    """When the learner's push came."""


class AsynchronousRounds(Rounds):
    """The policy of asynchronous rounds; see the module."""

    def __init__(
        self,
        run: RunState,
        pool: LeasePool,
        validation: Validation,
        saver: Saver,
        *,
        dynamic_steps: bool = False,
    ) -> None:
        """`dynamic_steps`: a learner makes as many inner steps as its speed allows."""
        super().__init__(run, pool, validation, saver)
        self._dynamic_steps = dynamic_steps
        self._learning: dict[str, LearnerLease] = {}
        self._turns = 0
        self._retries = self._failed_fetches = 0
        self._unreached: set[str] = set()
        """Holders of the newest state that were let go; who comes again is ended."""
        self._merged_at = run.now
        self.handlers[Push] = self._on_learned

    @property
    def _quorum(self) -> int:
        """How many pushes a merge waits for: no more than can come."""
        working = len(self._run.progress.outstanding)
        return max(1, min(self._run.experiment.quorum or 1, working))

    def exhausted(self) -> bool:
        """Whether no merge is left: all are made, or the samples are used up."""
        progress = self._run.progress
        if progress.committed >= self._run.experiment.outer_loop_steps:
            return True
        no_data = self.pool.available < self.pool.quantum
        return no_data and not progress.outstanding

    def computing(self, name: str) -> bool:
        """Whether a learner has a lease, and has not pushed yet."""
        learning = self._learning.get(name)
        return learning is not None and learning.arrived is None

    def busy(self, name: str) -> bool:
        """Whether a learner works on a lease."""
        return name in self._learning

    def goes_on_from(self, held: int | None) -> bool:
        """Any state of the run's history: a push is moved along to the newest state."""
        return held is not None and held <= self._run.committed

    def needs_holder(self) -> bool:
        """Never: a learner works from the version that it holds."""
        return False

    def stuck(self, waiting: bool) -> bool:
        """If no learner has the newest version, as soon as one could use it."""
        run = self._run
        if run.roster.holders(run.committed) or run.served_now() is not None:
            return waiting
        return bool(run.roster.ready() or waiting) and not self.attempt

    def starts_without_holder(self, ready: Sequence[Member]) -> bool:
        """If the newest version can be fetched from this machine."""
        return any(self._run.source(member) for member in ready)

    def left(self, saved: SavedState, ready: Sequence[Member]) -> bool:
        """Whether a learner works on a lease, or holds another version."""
        return any(m.committed != saved.round or self.busy(m.name) for m in ready)

    def finish_prepared(self) -> bool:
        """Nothing: a push that was prepared is merged again."""
        return False

    # Leases -------------------------------------------------------------------

    def start(self, ready: list[Member]) -> None:
        """Give leases to learners without one; merge the pushes that are due."""
        self._return_abandoned()
        self._give_out(ready)
        self._merge()

    def _return_abandoned(self) -> None:
        """Return leases of learners that did not come back after a restart."""
        if self._run.age <= self._run.grace:
            return
        for name, lease in list(self._run.progress.outstanding.items()):
            if name not in self._run.roster and name not in self._learning:
                self.give_back(name, lease)

    def _give_out(self, ready: list[Member]) -> None:
        for member in ready:
            if not self.busy(member.name):
                self._occupy(member)

    def _occupy(self, member: Member) -> None:
        progress, name = self._run.progress, member.name
        lease = progress.outstanding.get(name)
        if lease is None:
            if name in self._run.draining or not self._wanted():
                return
            steps = self.pool.steps_for(1, self._at_most(member))
            if not steps:
                return
            lease = self.pool.take(steps)
            self._run.append(
                "lease", worker=name, lease=lease, version=member.committed
            )
        self._turns += 1
        self._learning[name] = LearnerLease(self._turns, lease)
        steps = size(lease) // self.pool.quantum
        member.pace.ordered(self._run.now)
        self._run.send(member, LeaseGrant(turn=self._turns, lease=lease, steps=steps))

    def _wanted(self) -> bool:
        """Whether there is a merge left for one more push."""
        progress = self._run.progress
        quorum = self._run.experiment.quorum or 1
        merges = -(-(len(progress.outstanding) + 1) // quorum)
        return progress.committed + merges <= self._run.experiment.outer_loop_steps

    def _at_most(self, member: Member) -> int:
        """How many inner steps a learner makes while the fastest one makes all."""
        if not (self._dynamic_steps or self._run.experiment.uneven_steps):
            return self._run.steps
        speeds = [m.speed for m in self._run.roster.ready() if m.speed]
        if not speeds or not member.speed:
            return self._run.steps
        return share(self._run.steps, member.speed, max(speeds))

    def _on_learned(self, member: Member, message: Push) -> None:
        """A push has come."""
        learning = self._learning.get(member.name)
        if learning is None or learning.turn != message.turn:
            return
        learning.arrived = self._run.now
        steps = size(learning.lease) // self.pool.quantum
        member.measured(steps, message.seconds)
        member.pace.made(steps, message.seconds)

    def lost(self, member: Member) -> None:
        """A learner is gone; a push of it that was not merged is lost."""
        attempt = self.attempt
        self.forget(member)
        if attempt is not None and member.name in attempt.members:
            self._retry(attempt.again(attempt.epoch + 1, [member.name]))

    def without(self, attempt: Attempt, name: str) -> None:
        """A learner's push does not count; it gets another lease."""
        if name in self._run.roster:
            self.forget(self._run.roster[name])

    def forget(self, member: Member) -> None:
        """Drop a learner's steps and push, with the state that it held."""
        self._learning.pop(member.name, None)
        lease = self._run.progress.outstanding.get(member.name)
        if lease is not None:
            self.give_back(member.name, lease)

    def give_up(self) -> None:
        """Nothing: a lost version takes only the pushes that it merged with it."""

    # Merges -------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Apply time limits to the merge under way; other learners go on meanwhile."""
        if not (self._run.progress.paused or self._run.cancelled):
            self._give_out(self._run.roster.ready())
        self._check_failed(now)

    def _merge(self) -> None:
        """Begin the next merge, if it is due and the newest state is there."""
        pushes = self._due(self._run.now)
        source = self._run.source(self._run.roster[pushes[0]]) if pushes else None
        if source is None:
            return
        newest = self._run.committed
        # A holder of the newest version need not fetch it.
        pushes.sort(key=lambda name: self._run.roster[name].committed != newest)
        progress = self._run.progress
        self._launch(
            Attempt(
                round=progress.committed + 1,
                epoch=progress.epoch + 1,
                members=pushes,
                leases={name: self._learning[name].lease for name in pushes},
                began=self._run.now,
                first=False,
                retries=self._retries,
            )
        )

    def _due(self, now: float) -> list[str]:
        """The pushes to merge now, in the order in which they came."""
        arrived = {
            name: learning.arrived
            for name, learning in self._learning.items()
            if learning.arrived is not None and self._run.roster[name].state == READY
        }
        order = sorted(arrived, key=arrived.__getitem__)
        if not order:
            return []
        experiment, quorum = self._run.experiment, self._quorum
        limit = experiment.round_deadline_seconds
        late = limit is not None and now >= arrived[order[0]] + limit
        if len(order) < quorum:
            return order if late else []
        closes = arrived[order[quorum - 1]] + experiment.grace_seconds
        if now < closes and not late and len(order) < len(self._learning):
            return []
        return [name for name in order if arrived[name] <= closes]

    def _particulars(self, attempt: Attempt, name: str) -> dict[str, Any]:
        """The source of the newest state, and that a member's steps began before it."""
        source = self._run.source(self._run.roster[name], attempt.retries)
        digest = self._run.progress.digest
        return {"carried": True, "source": source, "digest": digest}

    def _retry(self, attempt: Attempt) -> None:
        """Queue the pushes of an attempt again."""
        self._retries, self.attempt = attempt.retries, None

    def _on_group_failed(self, member: Member, message: GroupFailed) -> None:
        """A learner could not fetch the newest state, or could not exchange."""
        attempt = self.attempt
        super()._on_group_failed(member, message)
        if attempt is not None and attempt.failed_at is not None:
            self._failed_fetches += not message.lost

    def _again(self, attempt: Attempt, why: str) -> None:
        """Try again; remove a holder of the newest state that no learner can reach.

        Of several one, when all have had their turns.
        """
        holders = self._run.roster.holders(self._run.committed)
        alone = bool(holders) and all(m.name not in attempt.members for m in holders)
        if alone and self._failed_fetches > _FETCHES * len(holders):
            holder = holders[attempt.retries % len(holders)]
            self._failed_fetches = attempt.retries = 0
            again = holder.name in self._unreached
            self._unreached.add(holder.name)
            why = "no learner can fetch the newest state from it"
            (self._end if again else self.drop)(holder, why)
        super()._again(attempt, why)

    def commit(self, attempt: Attempt) -> None:
        """Commit a merge: its members hold the newest version, and get new leases."""
        super().commit(attempt)
        self._retries = self._failed_fetches = 0
        self._unreached.clear()
        self._merged_at = self._run.now

    def _settle(self, attempt: Attempt) -> None:
        """The pushes of these learners are merged."""
        for name in attempt.members:
            self._learning.pop(name, None)

    def _seconds(self, attempt: Attempt, busy: float) -> float:
        """Seconds since the merge before, in which all learners made their steps."""
        return max(self._run.now - self._merged_at, 1e-6)
