"""Rounds that all members begin together, from one state.

A member slower than quorum, grace or deadline allow is left out: its lease goes back to
the pool, and it takes part in the next round; or its steps are stale results, which
count in a later round (`pcp.training.coordinator.stale_results`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.checkpointing import Saver
from pcp.training.coordinator.events import SavedState
from pcp.training.coordinator.roster import READY, Member
from pcp.training.coordinator.rounds import Rounds, share
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.stale_results import StaleResults
from pcp.training.coordinator.straggler_policy import slow_members
from pcp.training.coordinator.validation import Validation
from pcp.training.data.lease_pool import LeasePool, Range, size
from pcp.training.wire.messages import (
    Computed,
    Prepared,
)


class SynchronousRounds(Rounds):
    """The policy of synchronous rounds; see the module.

    `alone`: a round has one member, other workers are idle. `inner_exchanges`: a round
    has exchanges between inner steps, so the others' waiting shows a slow member.
    """

    def __init__(
        self,
        run: RunState,
        pool: LeasePool,
        validation: Validation,
        saver: Saver,
        *,
        alone: bool = False,
        inner_exchanges: bool = False,
    ) -> None:
        super().__init__(run, pool, validation, saver)
        self._alone, self._inner_exchanges = alone, inner_exchanges
        self._late = StaleResults(run)

    def exhausted(self) -> bool:
        """Whether no further round can begin: all are done, or the data is used up."""
        progress = self._run.progress
        rounds = progress.committed >= self._run.experiment.outer_loop_steps
        no_data = self.pool.available < self.pool.quantum and not self._late.members
        return not progress.outstanding and (rounds or no_data)

    def busy(self, name: str) -> bool:
        """Whether a worker makes late steps."""
        return self._late.busy(name)

    def goes_on_from(self, held: int | None) -> bool:
        """The committed state alone."""
        return held == self._run.committed

    def needs_holder(self) -> bool:
        """Between two rounds; in a round the members have the state, or fetch it."""
        return self.attempt is None

    def stuck(self, waiting: bool) -> bool:
        """While a worker waits for a state."""
        return waiting

    def starts_without_holder(self, ready: Sequence[Member]) -> bool:
        """Never: rank 0 of a round holds the state of the one before."""
        return False

    def left(self, saved: SavedState, ready: Sequence[Member]) -> bool:
        """Never: all members begin together."""
        return False

    # Beginning a round ------------------------------------------------------------

    def start(self, ready: list[Member]) -> None:
        """The first attempt of the next round."""
        run, rank = self._run, self._rank_by(self._group)
        ready = [member for member in ready if not self._late.busy(member.name)]
        ready = [member for member in ready if not member.pace.away] or ready
        if not any(member.committed == run.committed for member in ready):
            return  # those that hold the state are busy: rank 0 must
        if self._alone:
            held = run.progress.outstanding
            ready = [min(ready, key=lambda m: (m.name not in held, rank(m)))]
        self._return_absent({member.name for member in ready})
        # Holders of the state come first: the others fetch it from rank 0.
        order = [member.name for member in sorted(ready, key=rank)]
        again = bool(run.progress.outstanding or self._late.leases())
        leases = self._leases(order)
        members = [name for name in order if name in leases]
        if not members:
            return
        again = again or members != self._group
        attempt = Attempt(
            round=run.progress.committed + 1,
            epoch=run.progress.epoch + again,
            members=members,
            leases={name: leases[name] for name in members},
            began=run.now,
        )
        self._launch(attempt)

    def _return_absent(self, names: set[str]) -> None:
        """Return the leases of absent members to the pool."""
        for name, lease in list(self._run.progress.outstanding.items()):
            if name not in names:
                self.give_back(name, lease)

    def _leases(self, order: Sequence[str]) -> dict[str, list[Range]]:
        """The lease of each of these members: the one it has, or new samples."""
        leases = self._run.progress.outstanding | self._late.leases()
        without = [name for name in order if name not in leases]
        steps = 0
        while without and not steps:
            steps = self.pool.steps_for(len(without), self._run.steps)
            without = without if steps else without[:-1]
        for name, count in self._steps(steps, without).items():
            leases[name] = self.pool.take(count)
        return leases

    def _steps(self, at_most: int, names: list[str]) -> dict[str, int]:
        """The inner steps of each of `names`, so that all end together (DyLU)."""
        speeds = {name: self._run.roster[name].speed for name in names}
        fastest = max((speed for speed in speeds.values() if speed), default=None)
        if not (self._run.experiment.uneven_steps and fastest):
            return dict.fromkeys(names, at_most)
        return {
            name: share(at_most, speed or fastest, fastest)
            for name, speed in speeds.items()
        }

    def _rank_by(self, group: list[str]) -> Callable[[Member], tuple[bool, int, int]]:
        """Holders of the state first, then as in the last group, which may stay."""
        places = {name: place for place, name in enumerate(group)}
        committed = self._run.committed

        def rank(member: Member) -> tuple[bool, int, int]:
            place = places.get(member.name, len(group))
            return member.committed != committed, place, member.index

        return rank

    def _particulars(self, attempt: Attempt, name: str) -> dict[str, Any]:
        """The source of the state; of late steps, that they are made, and a weight."""
        said = {"digest": self._run.progress.digest}
        if name not in self._late.members:
            return said
        weight = self._late.weight(name, attempt.round)
        return {**said, "carried": True, "weight": weight}

    def finish_prepared(self) -> bool:
        """Commit a round that was prepared by all when the last shepherd died."""
        run, progress = self._run, self._run.progress
        if set(progress.outstanding) != set(progress.members):
            return False  # one of its leases was taken back since
        prepared: dict[str, Prepared] = {}
        for name in progress.outstanding:
            member = run.roster[name] if name in run.roster else None
            report = member.hello.prepared if member else None
            if member is None or report is None or member.state != READY:
                return False
            if (report.round, report.epoch) != (progress.committed + 1, progress.epoch):
                return False
            prepared[name] = report
        digests = {report.digest for report in prepared.values()}
        if len(digests) != 1 or self.guard.result([*prepared.values()]):
            return False
        attempt = Attempt(
            round=progress.committed + 1,
            epoch=progress.epoch,
            members=list(prepared),
            leases=dict(progress.outstanding),
            began=run.now,
            prepared=prepared,
            digest=digests.pop(),
        )
        if any(self._fault(attempt, name, said) for name, said in prepared.items()):
            return False  # the round is made again, and checked
        run.log(f"round {attempt.round} was prepared by all: committing it")
        self.commit(attempt)
        return True

    # In a round ---------------------------------------------------------------------

    def lost(self, member: Member) -> None:
        """A member is gone; its part of this round does not count."""
        # If it comes back it may be another process, which needs another group.
        self._group = []
        attempt = self.attempt
        self.forget(member)
        if attempt is not None and (aside := attempt.aside.pop(member.name, None)):
            self.give_back(member.name, aside)
        if attempt is not None and member.name in attempt.members:
            self.give_back(member.name, attempt.leases[member.name])
            self._retry(attempt.again(self._run.progress.epoch + 1, [member.name]))

    def give_up(self) -> None:
        """Return all leases: the state that they belong to is lost."""
        for name in list(self._late.members):
            self.forget(self._run.roster[name])
        for name, lease in list(self._run.progress.outstanding.items()):
            self.give_back(name, lease)

    @property
    def exchanges_inside(self) -> bool:
        """Whether members exchange between inner steps."""
        return self._inner_exchanges

    def without(self, attempt: Attempt, name: str) -> None:
        """Return a member's samples to the pool; late steps of it do not count."""
        self._late.members.pop(name, None)
        if name in self._run.progress.outstanding:
            self.give_back(name, (attempt.leases | attempt.aside)[name])

    def forget(self, member: Member) -> None:
        """Drop a member's late steps, with the state that it held."""
        if lease := self._late.forget(member.name):
            self.give_back(member.name, lease)

    def _on_computed(self, member: Member, message: Computed) -> None:
        """A member has done its inner steps, in time or late."""
        if self._current(message):
            super()._on_computed(member, message)
        elif lease := self._late.computed(member, message):
            steps = size(lease) // self.pool.quantum
            if fault := self.guard.part(member.name, message, steps):
                self._reject_late(member, message.round, fault)
            else:
                self._join(member.name, lease)

    def _reject_late(self, member: Member, round_: int, fault: str) -> None:
        """Late steps may not count: the member has dropped them, or is to."""
        who = self._who(member.name)
        self._run.log(f"{who} is left out of round {round_}, late: {fault}")
        self.forget(member)
        self._wrong(member.name, round_, fault)

    def _join(self, name: str, lease: list[Range]) -> None:
        """Add a late member to the round under way, if others still compute."""
        attempt = self.attempt
        if attempt is None or not attempt.slow:
            return
        epoch = self._run.progress.epoch + 1
        self._retry(attempt.again(epoch, joining={name: lease}))

    def check(self, now: float) -> None:
        """Leave out members that are too slow; try a failed round again."""
        attempt = self.attempt
        if attempt is None:
            return
        slow = slow_members(attempt, self._run.experiment, self._inner_exchanges, now)
        absent, idle = self._absent(attempt, now), self._held_up_by(attempt, now)
        for name in absent or idle:
            self._run.roster[name].pace.away = True
        if absent:
            self._leave_out(attempt, absent, now, "the others wait to form their group")
        elif idle:
            self._leave_out(attempt, idle, now, "the others wait for it, and it idles")
        elif slow:
            self._leave_out(attempt, slow, now, "not done in time")
        self._check_failed(now)

    def _absent(self, attempt: Attempt, now: float) -> list[str]:
        """Members that have not begun with their message, while others form the group.

        A member that makes the round's steps by an earlier message has begun.
        """
        roster = self._run.roster
        return [
            name
            for name in attempt.straggler_detection.awaited(attempt.members)
            if not attempt.heard(name) and not roster[name].pace.may_come(now)
        ]

    def _leave_out(
        self, attempt: Attempt, names: list[str], now: float, why: str
    ) -> None:
        run = self._run
        for name in names:
            member = run.roster[name]
            steps = attempt.steps(name, self.pool.quantum)
            member.measured(steps, now - attempt.began)  # its speed is below this
            run.log(f"{member.who} is left out: {why}")
            if self._late.counts:
                self._late.keep(attempt, name)
            else:
                self.give_back(name, attempt.leases[name])
        self._retry(attempt.again(run.progress.epoch + 1, names))

    def _retry(self, attempt: Attempt) -> None:
        """Start the next attempt of a round, if enough members are left."""
        self.attempt = None
        run = self._run
        holders = {member.name for member in run.roster.holders(run.committed)}
        attempt.members.sort(key=lambda name: name not in holders)
        if attempt.members and attempt.members[0] in holders:
            self._goes_on(attempt)

    def _settle(self, attempt: Attempt) -> None:
        """Note that late steps of these members have counted."""
        self._late.settle(attempt.members)
